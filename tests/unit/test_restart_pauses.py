from workers.restart_pauses import RestartPauses


def test_each_restart_waits_longer_until_the_connection_has_held() -> None:
    """Celery's own restarts twenty times a second."""
    sleeps: list[float] = []
    now = [0.0]
    pauses = RestartPauses(sleeps.append, lambda: now[0])
    for _ in range(9):
        pauses.step()
    assert sleeps == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    now[0] = 60
    pauses.step()
    assert sleeps[-1] == 0
