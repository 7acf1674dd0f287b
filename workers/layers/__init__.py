"""Layers that families share: attention over a KV ring, rotary positions, norms. They know no process group."""
