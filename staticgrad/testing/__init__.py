"""Checks of derivatives against finite differences, for users and for our own tests."""

from staticgrad.testing.gradient_checks import (
    check_jvp,
    check_op,
    check_vmap,
    gradcheck,
    gradgradcheck,
)

__all__ = ["check_jvp", "check_op", "check_vmap", "gradcheck", "gradgradcheck"]
