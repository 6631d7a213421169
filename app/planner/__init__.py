"""Decides how many workers each pool needs: a pure decision over what was observed."""
