"""Running programs: virtual machine, calls, executables, errors, profiles."""
