"""Java, which Spark runs on: whether there is one, and what to install where there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from penstock.errors import SettingsError

NEEDED = 17

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java() -> str:
    """The program `java` that Spark will take: of JAVA_HOME, else on the path.

    Raises SettingsError with what to install where there is none, or one too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    advice = f"install Java {NEEDED} or newer (on Debian: apt-get install openjdk-17-jre-headless)"
    if java is None:
        where = f"JAVA_HOME is {home} and has no bin/java" if home else "there is no java on the path"
        raise SettingsError(f"Spark needs Java, and {where}: {advice}")
    version = java_version(java)
    if version is None:
        raise SettingsError(f"Spark needs Java, and {java} does not run: {advice}")
    if version < NEEDED:
        raise SettingsError(
            f"Spark needs Java {NEEDED}, and {java} is Java {version}: {advice}, or set JAVA_HOME to one"
        )
    return java


def java_version(java: str) -> int | None:
    """The feature version that a `java` says it is; None when it does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stderr + said.stdout)
    if match is None:
        return None
    first, second = int(match[1]), match[2]
    return int(second) if first == 1 and second else first
