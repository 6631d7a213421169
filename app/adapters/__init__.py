"""LoRA adapters: which are wanted, who has them, and how they get there. `ops/decisions/0033-adapters.md` says why."""
