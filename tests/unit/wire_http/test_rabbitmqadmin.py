"""The command line that a server hands out: what it shows, and what bash makes of it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import penstock.dashboard
from forked import ran
from http_lab import Http

TOOL = str(Path(penstock.dashboard.__file__).with_name("rabbitmqadmin"))


def run(*words: str, status: int = 0) -> str:
    made = ran(TOOL, *words)
    told = made.stdout + made.stderr
    assert made.returncode == status, told
    return told


def test_all_fields_down_to_a_depth(http: Http) -> None:
    at = "-U", http.broker.http_url, "-f", "tsv"
    one, two = (run(*at, "--depth", depth, "list", "queues").splitlines()[0].split("\t") for depth in "12")
    assert one[:2] == two[:2] == ["name", "vhost"]
    assert "messages" in one
    assert not any("." in name for name in one)
    assert {"message_stats.publish", "messages"} <= set(two)
    assert "message_stats.publish_details" not in two
    assert "message_stats.publish_details.rate" in run(*at, "-d", "3", "list", "queues")
    assert "message_stats.publish" in run(*at, "-d", "2", "show", "overview")
    assert run(*at, "-d", "2", "list", "queues", "name") == "name\nq\n"  # what is named goes before
    assert "--depth is 0, and has to be 1 or more" in run("-d", "0", "list", "queues", status=2)
    assert "say what to do" in run(status=2)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_what_is_typed(tmp_path: Path) -> None:
    (tmp_path / "completion").write_text(run("--bash-completion"))

    def completed(*words: str) -> set[str]:
        typed = " ".join(map(shlex.quote, ("rabbitmqadmin", *words)))
        lines = (
            f". {tmp_path}/completion",
            f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}",
            "_rabbitmqadmin",
            'echo "${COMPREPLY[@]}"',
        )
        return set(subprocess.run(["bash", "-c", "\n".join(lines)], check=True, stdout=-1, text=True).stdout.split())

    assert completed("declare", "ex") == {"exchange"}
    assert completed("list", "vh") == {"vhosts", "vhost_limits"}
    assert completed("pu") == {"publish", "purge"}
    assert completed("-f", "ra") == {"raw_json"}
    assert "--depth" in completed("--de")
