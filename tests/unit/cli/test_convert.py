"""`penstock convert`, `check` and `doctor` with settings files of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]

XML = """<AMPSConfig>
  <Name>one</Name>
  <Logging/>
  <SOW>
    <LocalQueue>
      <Name>Jobs</Name>
      <MessageType>json</MessageType>
      <MaxCancels>3</MaxCancels>
      <Filter>/total &gt; 5</Filter>
    </LocalQueue>
  </SOW>
</AMPSConfig>
"""


@pytest.fixture
def run(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "250")
    return run


@pytest.fixture
def amps(tmp_path: Path) -> Path:
    path = tmp_path / "amps.xml"
    path.write_text(XML)
    return path


def test_settings_go_to_stdout_and_what_differs_to_stderr(run: Run, amps: Path) -> None:
    amps.write_text(
        XML.replace("LocalQueue>", "GroupLocalQueue>").replace("<Max", "<InitialOwner>one</InitialOwner><Max")
    )
    status, out, err = run("convert", str(amps), "--to", "toml")
    assert status == 0
    assert out.startswith(f"# From AMPSConfig, {amps}\n")
    assert tomllib.loads(out) == {
        "server": {"name": "one"},
        "queue": [
            {
                "name": "Jobs",
                "kind": "group-local",
                "initial_owner": "one",
                "max_cancels": 3,
                "filter": "/total > 5",
                "max_per_subscription_backlog": 1,
                "recovery_point": "epoch",
            }
        ],
    }
    assert "no meaning here" in err
    assert "differs here" in err


def test_json_holds_everything(run: Run, amps: Path) -> None:
    status, out, err = run("convert", str(amps), "--json")
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert told["format"] == "AMPSConfig"
    assert tomllib.loads(told["toml"]) == told["settings"]
    assert told["remarks"][0] == {
        "verdict": "no meaning here",
        "file": str(amps),
        "line": 3,
        "what": "<Logging>",
        "text": "messages go to standard error",
    }


def test_wrong_files_end_with_two(run: Run, amps: Path, tmp_path: Path) -> None:
    amps.write_text(XML.replace("3", "three"))
    status, out, err = run("convert", str(amps))
    assert (status, out) == (2, "")
    assert f"{amps}:8: <MaxCancels> of <LocalQueue> \"Jobs\": 'three' is not a whole number" in err
    ours = tmp_path / "penstock.toml"
    ours.write_text("[server]\n")
    assert "needs no conversion" in run("convert", str(ours))[2]
    assert run("convert", str(tmp_path / "none"))[0] == 2
    assert run("convert", str(amps), "--to", "yaml")[0] == 2


@pytest.mark.parametrize(
    ("instead", "told"),
    [
        ("<Filter>/total &gt;</Filter>", '9: <Filter> of <LocalQueue> "Jobs": the expression ends'),
        ("<Priority>priority</Priority>", "9: <Priority> of <LocalQueue> \"Jobs\": 'priority' is no function call"),
        ("<BarrierExpression>/at LIKE '(?=a)'</BarrierExpression>", '9: <BarrierExpression> of <LocalQueue> "Jobs":'),
    ],
)
def test_convert_tells_what_a_server_would_not_start_with(run: Run, amps: Path, instead: str, told: str) -> None:
    """All is converted, so that it can be mended in either file."""
    amps.write_text(XML.replace("<Filter>/total &gt; 5</Filter>", instead))
    status, out, err = run("convert", str(amps))
    assert status == 0
    assert "[[queue]]" in out
    assert "the server does not start with this:\n" in err
    assert f"{amps}:{told}" in err


def test_check_reads_the_file_as_it_is(run: Run, amps: Path) -> None:
    status, out, err = run("check", str(amps))
    assert (status, out) == (0, f"{amps}: good (1 queue)\n")
    assert "no meaning here" in err
    amps.write_text(XML.replace("/total &gt; 5", "/total &gt;"))
    status, _, err = run("check", str(amps))
    assert status == 2
    assert f'{amps}:9: <Filter> of <LocalQueue> "Jobs":' in err


def test_check_tells_what_differs_also_where_something_is_refused(run: Run, tmp_path: Path) -> None:
    definitions = tmp_path / "definitions.json"
    upstream = {"component": "federation-upstream", "vhost": "/", "name": "eu", "value": {}}
    queue = {"name": "q", "vhost": "/", "durable": True, "arguments": {"x-queue-type": "quorum"}}
    definitions.write_text(json.dumps({"parameters": [upstream], "queues": [queue]}))
    status, out, err = run("check", str(definitions))
    assert (status, out) == (2, "")
    assert "copies on other nodes" in err
    assert "belongs to the plugin 'federation-upstream'" in err


def test_check_knows_the_variables_of_actions(run: Run, amps: Path) -> None:
    action = """<Actions><Action>
      <On><Module>amps-action-on-sow-expire-message</Module><Options><Topic>Jobs</Topic></Options></On>
      <Do><Module>amps-action-do-publish-message</Module>
        <Options><Topic>Failed</Topic>
          <Data>{{AMPS_NOTHING}}</Data></Options></Do>
    </Action></Actions></AMPSConfig>"""
    amps.write_text(XML.replace("</AMPSConfig>", action))
    status, _, err = run("check", str(amps))
    assert status == 2
    assert f"{amps}:16: <Data> of <Options> of <Do>: an action knows no variable {{{{AMPS_NOTHING}}}}" in err


def test_check_reads_the_expressions_of_actions(run: Run, tmp_path: Path) -> None:
    settings = tmp_path / "penstock.toml"
    settings.write_text(
        '[[action]]\nname = "tell"\non = { queue = "q" }\nif = "/a >"\ndo = { echo_message = { message = "" } }'
    )
    status, _, err = run("check", str(settings))
    assert status == 2
    assert '[[action]] "tell"' in err
    assert "/a >" in err


def test_check_reads_the_expressions_of_entitlements(run: Run, tmp_path: Path) -> None:
    settings = tmp_path / "penstock.toml"
    settings.write_text('[[entitlement]]\nqueue = "q"\nread = "/a >"')
    status, _, err = run("check", str(settings))
    assert status == 2
    assert "[[entitlement]] number 1 read" in err


@pytest.mark.parametrize(
    ("inside", "status", "told"),
    [
        ("<Module>amps-default-entitlement-module</Module>", 0, "without [[entitlement]] everything is allowed"),
        ("<Module>rights</Module>", 2, "not done here: 'rights'; write [[entitlement]] instead"),
        ("", 2, "has no <Module>"),
    ],
)
def test_entitlement_modules(run: Run, amps: Path, inside: str, status: int, told: str) -> None:
    amps.write_text(XML.replace("</AMPSConfig>", f"<Entitlement>{inside}</Entitlement></AMPSConfig>"))
    found, out, err = run("check", str(amps))
    assert found == status
    assert told in " ".join((out + err).split())


def test_doctor_shows_the_line_of_each_setting(run: Run, amps: Path) -> None:
    settings = json.loads(run("doctor", str(amps), "--json")[1])["settings"]
    assert settings["server.name"] == {"value": "one", "from": f"{amps}:2"}
    assert settings["server.sync"]["from"] == "default"
    assert settings['queue "Jobs" max_cancels'] == {"value": "3", "from": f"{amps}:8"}
    assert settings['queue "Jobs" max_per_subscription_backlog'] == {"value": "1", "from": f"{amps}:5"}
    assert 'queue "Jobs" max_deliveries' not in settings


def test_serve_takes_the_file_and_tells_what_differs(amps: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "serve", str(amps), "--data", str(tmp_path / "data")]
    command += ["--amqp", "127.0.0.1:0", "--http", "off", "--flight", "off"]
    wide = {**os.environ, "COLUMNS": "250"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=wide) as server:
        assert server.stdout is not None
        assert server.stdout.readline()  # the line that says the doors are open
        server.terminate()
        _, err = server.communicate(timeout=30)
    assert server.returncode == 0
    assert "no meaning here" in err
