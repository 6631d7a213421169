"""Prints what is wrong, what was repaired, and one line of JSON."""

import json
import sys
from collections import Counter
from pathlib import Path

from ops.bench.processes import Unavailable
from ops.templates.check import outcomes
from ops.templates.conversations import CONVERSATIONS


def main() -> int:
    try:
        results = list(outcomes([Path(name) for name in sys.argv[1:]] or None))
    except Unavailable as exc:
        sys.exit(f"no templates: {exc}")
    for one in results:
        if one.wrong:
            print(f"{one.template}, {one.conversation}: {one.why}")
    for (kind, why), count in sorted(Counter((one.kind, one.why) for one in results if not one.wrong).items()):
        print(f"{count:6d} {kind}{': ' * bool(why)}{why[:120]}")
    wrong = sum(one.wrong for one in results)
    figures = {"templates": len({one.template for one in results}), "conversations": len(CONVERSATIONS)}
    print(json.dumps(figures | {"rendered": len(results), "templates_wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
