"""Programs that run inside a virtual machine."""
