"""The compiler of staticgrad: Graph -> Schedule -> Plan -> Program -> numbers.

Its folder stands beside the package; its name is ``staticgrad.compiler``.
"""

if __name__ != "staticgrad.compiler":
    raise ImportError(
        f"this package is imported as staticgrad.compiler, not as {__name__}"
    )
