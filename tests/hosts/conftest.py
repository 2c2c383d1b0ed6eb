"""Networks of hosts of our own, or the reason why there are none here."""

import pytest

from tests.hosts.namespaces import Network, why_not


@pytest.fixture(scope="session")
def networks(tmp_path_factory):
    reason = why_not(tmp_path_factory.mktemp("trial"))
    if reason:
        pytest.skip(reason)


@pytest.fixture
def network(networks, request, tmp_path):
    """Hosts that reach each other: two, or as many as the test's parameter says."""
    with Network(getattr(request, "param", 2), tmp_path) as made:
        yield made
