"""LoRA adapters: which are wanted, who has them, and how they get there. `ops/decisions/0035-adapters.md` says why."""
