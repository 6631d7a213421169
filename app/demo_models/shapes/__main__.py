"""`python -m app.demo_models.shapes DIR`: makes DIR, a model that sees, and DIR-painter, one that paints.

`python -m app.demo_models.shapes DIR seeing|painting` makes DIR alone, as what it says.
"""

import os
import sys
from pathlib import Path

from app.demo_models import smollm2
from app.demo_models.model_folder import prepare, prepare_shown
from app.demo_models.shapes import PROOF, painting, seeing

_KINDS = ("seeing", "painting")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ["seeing"], ["painting"]):
        raise SystemExit("usage: python -m app.demo_models.shapes DIR [seeing|painting]")
    # Read when the libraries are imported: no network, no progress bars, no advice.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    dest, kinds = Path(sys.argv[1]), sys.argv[2:] or _KINDS
    for kind in kinds:
        if kind == "seeing":
            prepare_shown(dest, lambda folder: seeing.prepare(_smollm2(dest.parent), folder), PROOF)
        else:
            target = dest if kinds == ["painting"] else dest.with_name(f"{dest.name}-painter")
            prepare_shown(target, painting.prepare, PROOF)


def _smollm2(models: Path) -> Path:
    dest = models / smollm2.NAME
    prepare(dest, smollm2.convert)
    return dest


if __name__ == "__main__":
    main()
