"""The page about Dynamo's options."""

import json
import re

from app.settings import Settings
from ops.docs.gaps import DYNAMO_OPTIONS, dynamo_flags_without_row
from tests.stack import ROOT

# Of each launcher, as its own parsers of `ai-dynamo` 1.6.1 define them; and those of earlier versions.
OPTIONS: dict[str, list[str]] = json.loads(DYNAMO_OPTIONS.read_text())
PAGE = (ROOT / "docs/guide/dynamo.md").read_text()
POOLS_REFERENCE = (ROOT / "docs/reference/pools.md").read_text()


def test_every_option_of_dynamos_launchers_is_there_once() -> None:
    first_cells = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| `--")]
    names_there = [option for cell in first_cells for option in re.findall(r"`(--[a-z-]+)`", cell)]
    options = [option for group in OPTIONS.values() for option in group]
    assert sorted(names_there) == sorted(options)
    assert dynamo_flags_without_row() == []


def test_what_it_names_here_exists() -> None:
    settings = {f"XYLEM_{name.upper()}" for name in Settings.model_fields}
    aliases = {str(field.validation_alias) for field in Settings.model_fields.values() if field.validation_alias}
    assert set(re.findall(r"XYLEM_[A-Z_]+", PAGE)) <= settings | aliases
    keys = {
        key
        for text in re.findall(r"pool: (`[^`]+`(?:, `[^`]+`)*)", PAGE)
        for key in re.findall(r"[`{ ]([a-z_]+): ", text)
    }
    keys |= set(re.findall(r"pool: `([a-z_]+)[:`]", PAGE))
    assert len(keys) > 20
    assert {key for key in keys if f"| `{key}` |" not in POOLS_REFERENCE} == set()


def test_what_visualgen_takes_is_in_its_contract() -> None:
    contract = json.loads((ROOT / "tests/contract/apis/tensorrt_llm_visual.json").read_text())["classes"]
    fields = {field for entry in contract.values() for field in entry.get("fields", ())} | {"quant_algo", "dynamic"}
    table = PAGE[PAGE.index("**Diffusion.**") : PAGE.index("## Earlier ones")]
    args = [line for line in table.splitlines() if line.startswith("| `--") and "| `" in line[1:]]
    names_there = {key for line in args for key in re.findall(r"([a-z_0-9]+): ", line)}
    assert len(names_there) > 15
    assert names_there <= fields
