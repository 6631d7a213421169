"""A spoken question to a pipeline whose first model is a real Whisper on vLLM."""

from base64 import b64encode
from pathlib import Path

import pytest
import yaml

from app.demo_models.model_folder import prepare
from app.demo_models.whisper import NAME, convert
from tests.serving import begin, client_of
from tests.speech.samples import GARDEN
from tests.stack import ROOT, mock_pool, stack

SPOKEN = "the children are playing in the garden."  # which the model makes out


@pytest.mark.media
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_what_whisper_hears_is_answered(valkey_url: str, tmp_path: Path) -> None:
    """The second model answers these words only."""
    model = ROOT / ".xylem/models" / NAME
    prepare(model, convert)
    whisper = {"model": "whisper-1", "engine": "vllm", "task": "transcribe", "path": str(model), "max_running": 8}
    pools = {
        "ears": whisper | {"args": {"kv_cache_memory_bytes": 2**28}},
        "answerers": mock_pool(model="answerer", script={SPOKEN: "Let them play."}),
    }
    env = {"XYLEM_DEPLOYMENT": "heard", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with stack(valkey_url, tmp_path, pools, **env) as s:
        pipeline = {"stages": [{"model": "whisper-1"}, {"model": "answerer"}]}
        s.pools_file.write_text(yaml.safe_dump({"pools": pools, "pipelines": {"narrate": pipeline}}))
        begin(s, within_s=200)
        sound = {"data": b64encode(GARDEN).decode(), "format": "wav"}  # a FLAC: its content counts
        with client_of(s.url) as client:
            answer = client.chat.completions.create(
                model="narrate",
                messages=[{"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]}],  # type: ignore[list-item,misc]
            )
    assert (answer.model_extra or {})["stages"][0]["output"].endswith(SPOKEN)
    assert answer.choices[0].message.content == "Let them play."
