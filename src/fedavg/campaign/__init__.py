"""Many runs side by side, one process per core, towards aims that are asked again whenever a run ends."""
