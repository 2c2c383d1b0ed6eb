"""Which processes a rank watches over an engine that does not tell when one of them ends."""

import subprocess

import msgspec

from corral import _core
from corral.backends.places import Place, Processes, here


def _place_of(process, **other):
    return msgspec.structs.replace(here(), pid=process.pid, started=_core.start_time(process.pid), **other)


def test_a_process_of_this_machine_is_seen_to_end_whatever_its_host_is_called():
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as first,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as second,
    ):
        places = [
            here(),
            _place_of(first, host="another"),
            _place_of(second, kernel="of another machine"),
            _place_of(second, namespace=1),
        ]
        assert [Place.decode(place.encode()) for place in places] == places
        processes = Processes(places, 0)
        assert processes.ended() == {}
        for child in (first, second):
            child.kill()
            child.wait()
        assert processes.ended().keys() == {1}
        assert processes.ended() == {}
        processes.close()
