"""Many runs in parallel, one process per core, towards aims that are checked again whenever a run ends."""
