# SPDX-License-Identifier: Apache-2.0
"""The wheel of a program: it is of one platform, and of any Python 3. scripts/make-wheel runs it, with the program in place."""
import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    name="minisgl",
    version=os.environ["MINISGL_VERSION"],
    description="An LLM serving engine in C, with an OpenAI-compatible API",
    long_description="`python -m minisgl --model ORG/NAME` serves a model at http://127.0.0.1:1919/v1; `minisgl help` says what else "
                     "there is. On the CPU: kernels for GPUs are plug-ins, which are built from the sources.",
    license="Apache-2.0",
    python_requires=">=3.8",
    packages=["minisgl"],
    package_data={"minisgl": ["bin/minisgl", "lib/*.so*"]},
    entry_points={"console_scripts": ["minisgl = minisgl.__main__:main"]},
    distclass=Binary,
    cmdclass={"bdist_wheel": AnyPython},
)
