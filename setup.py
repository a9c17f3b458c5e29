"""Only the C extension lives here; everything else is in pyproject.toml.

The extension is optional: where no compiler is present the build goes on without it
and `motet.matching` uses its pure-Python index, which means the same.
"""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "motet.matching._native",
            sources=["src/motet/matching/_native.c"],
            depends=sorted(glob("src/motet/matching/native/*.h")),
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
            optional=True,
        )
    ]
)
