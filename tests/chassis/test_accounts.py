"""Keys are kept where only their owner reads them; the configuration says what the table grants."""

import stat
from pathlib import Path

import pytest

from allmende.chassis import accounts
from allmende.chassis.accounts import ServerConf, User
from allmende.chassis.errors import Misconfigured

CONF = ServerConf("test", Path("/data/jetstream"))


def test_a_seed_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    first = accounts.keep(tmp_path / "keys", User("agent", "c1"))
    assert accounts.keep(tmp_path / "keys", User("agent", "c1")) == first
    assert first.public_key.startswith("U")
    assert first.seed_file.read_text().startswith("SU")
    assert stat.S_IMODE(first.seed_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(first.seed_file.parent.stat().st_mode) == 0o700
    assert first.seed_file.read_text() not in accounts.render(CONF, [first])


def test_a_seed_that_others_may_read_is_refused(tmp_path: Path) -> None:
    account = accounts.keep(tmp_path, User("agent", "c1"))
    account.seed_file.chmod(0o644)
    with pytest.raises(Misconfigured, match="chmod 600"):
        accounts.keep(tmp_path, User("agent", "c1"))


def test_a_file_that_is_no_seed_is_refused(tmp_path: Path) -> None:
    path = accounts.seed_file(tmp_path, User("agent", "c1"))
    path.write_text("nonsense")
    path.chmod(0o600)
    with pytest.raises(Misconfigured, match="does not hold an nkey seed"):
        accounts.keep(tmp_path, User("agent", "c1"))


@pytest.mark.parametrize("user", [User("agent", "../c1"), User("user", "a.b"), User("user", "*"), User("ledger", "admission")])
def test_a_name_that_could_be_a_pattern_or_a_path_gets_no_key(tmp_path: Path, user: User) -> None:
    with pytest.raises(ValueError, match=user.identity.replace(".", r"\.").replace("*", r"\*")):
        accounts.keep(tmp_path, user)
    assert list(tmp_path.iterdir()) == []


def test_all_keys_of_a_folder_are_found_again(tmp_path: Path) -> None:
    made = [accounts.keep(tmp_path, user) for user in accounts.users_of(["c1"], ["alice"], ["front"], ["olga"], ["wall"])]
    assert set(accounts.kept(tmp_path)) == set(made)
    assert len(made) == 10


def test_the_configuration_syncs_always_and_pins_the_form_of_acknowledgements(tmp_path: Path) -> None:
    text = accounts.render(CONF, [accounts.keep(tmp_path, User("ledger", "ledger"))])
    assert "sync_interval: always" in text
    assert "feature_flags { js_ack_fc_v2: false }" in text
    assert "allow_responses: true" in text
    assert "sync_interval" not in accounts.render(CONF._replace(sync_always=False), [])
    # An older server refuses to start on a field that it does not know.
    assert "feature_flags" not in accounts.render(CONF._replace(version=(2, 12, 3)), [])


def test_only_services_may_answer(tmp_path: Path) -> None:
    for user in (User("agent", "c1"), User("user", "alice"), User("dashboard", "wall"), User("admin", "topology")):
        assert "allow_responses" not in accounts.render(CONF, [accounts.keep(tmp_path, user)])


def test_a_path_cannot_break_out_of_the_configuration() -> None:
    with pytest.raises(ValueError, match="cannot stand"):
        accounts.render(CONF._replace(store_dir=Path('/data" }, accounts { ')), [])


def test_telling_a_server_that_is_gone_is_an_error() -> None:
    with pytest.raises(Misconfigured):
        accounts.reload(2**22 + 1)
