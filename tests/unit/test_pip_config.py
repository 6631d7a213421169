"""Settings of pip in an image's build, from pip's settings here."""

from pathlib import Path

from ops.images.pip_config import merged, moved


def test_a_variable_counts_more_than_a_file_and_nothing_says_how_to_install() -> None:
    listing = (
        "global.index-url='https://a.example/simple'\nglobal.user='true'\n:env:.index-url='https://b.example/simple'"
    )
    assert merged(listing) == {"index-url": ["https://b.example/simple"]}


def test_files_of_this_machine_have_other_places_in_the_build(tmp_path: Path) -> None:
    """An index with the folder above it; an address of a network stays, and a folder that isn't there."""
    (tmp_path / "index" / "simple").mkdir(parents=True)
    (tmp_path / "index-more" / "simple").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    config = {
        "extra-index-url": [f"file://{tmp_path}/index/simple", f"file://{tmp_path}/index-more/simple"],
        "find-links": [f"{tmp_path}/wheels", f"{tmp_path}/gone", "https://a.example/wheels"],
    }
    inside, places = moved(config)
    assert inside == {
        "extra-index-url": ["file:///run/pip/0/simple", "file:///run/pip/1/simple"],
        "find-links": ["/run/pip/2", f"{tmp_path}/gone", "https://a.example/wheels"],
    }
    assert places == {
        tmp_path / "index": "/run/pip/0",
        tmp_path / "index-more": "/run/pip/1",
        tmp_path / "wheels": "/run/pip/2",
    }
