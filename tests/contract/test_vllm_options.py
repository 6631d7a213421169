"""The table of `xylem convert` has the options of the installed vLLM, no more and no less."""

import json
import subprocess

from app.cli.convert import _table
from app.pools.engine_options import _POOL_SETTINGS
from tests.stack import PYTHON

OPTIONS = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
actions = make_arg_parser(FlexibleArgumentParser())._actions
print(json.dumps([[action.dest, action.option_strings] for action in actions]))
"""


def test_every_option_of_vllm_serve_has_its_place_once() -> None:
    result = subprocess.run([PYTHON, "-c", OPTIONS], capture_output=True, text=True, timeout=300, check=True)
    actions = json.loads(result.stdout.splitlines()[-1])
    table = _table()
    engine = table["engine"]["options"].split()
    places = [*engine, *table["elsewhere"], *table["pool"]]
    assert {name for name, _ in actions} - {"help", "chat_template", "generation_config"} <= set(places)
    assert len(places) == len(set(places))
    assert set(places) <= {name for name, _ in actions}
    shorts = {
        text[1:]: name.replace("_", "-")
        for name, texts in actions
        for text in texts
        if text[1:2] != "-" and text != "-h"
    }
    assert table["short"] == shorts
    assert {"max_num_seqs", "block_size"} < set(engine) & _POOL_SETTINGS.keys()
