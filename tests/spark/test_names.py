"""The names of `fairsched.spark`."""

from __future__ import annotations

import inspect
import subprocess
import sys

import fairsched.spark


def test_each_name_is_a_function_and_not_the_module_it_is_in() -> None:
    for name in fairsched.spark.__all__:
        # The first look imports a module, which may then be in the way.
        assert inspect.isfunction(getattr(fairsched.spark, name)), name
        assert inspect.isfunction(getattr(fairsched.spark, name)), name


def test_names_can_be_imported_from_the_package() -> None:
    names = ", ".join(fairsched.spark.__all__)
    code = f"from fairsched.spark import {names}; assert all(callable(one) for one in [{names}])"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
