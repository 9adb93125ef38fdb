"""Over Flight: what asks for the administrator's tag, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from flight_house import FlightHouse
from penstock.errors import AccessRefused

pytestmark = pytest.mark.conformance


def test_records_of_all_kinds_are_for_administrators(tmp_path: Path) -> None:
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        client.declare("q")
        client.publish("q", b"x")
        assert [one["first"] for one in client.action("segments", with_vhost=False)["segments"]] == [1]
        assert sum(batch.num_rows for batch in client.log_batches()) > 1
        with penstock.connect(house.url.replace("guest:guest", "reader:reader")) as reader:
            assert [message.body for message in reader.replay("q", bookmark="EPOCH")] == [b"x"]
            assert reader.action("hold", with_vhost=False, read="r", start=1)["seconds"] == 600
            with pytest.raises(AccessRefused, match="tag 'administrator', which 'reader' does not have"):
                list(reader.log_batches())
            with pytest.raises(AccessRefused, match="segments"):
                reader.action("segments", with_vhost=False)
