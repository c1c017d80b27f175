"""Only what pyproject.toml cannot say: a wheel carries templates/ and static/, which stand beside the packages in the repository, within gpufleet."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SITE = ("templates", "static")


class BuildWithSite(build_py):
    """Copies the two folders to where `gpufleet.settings` looks for them in an installed console."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for folder in SITE:
                for path in sorted(Path(folder).rglob("*")):
                    if path.is_file():
                        target = Path(self.build_lib, "gpufleet", "site", path)
                        self.mkpath(str(target.parent))
                        self.copy_file(str(path), str(target))


setup(cmdclass={"build_py": BuildWithSite})
