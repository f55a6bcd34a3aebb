"""The engines of all ranks as one."""
