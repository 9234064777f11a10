import logging
import warnings

import pytest

from portico.lightning_compat import quiet_lightning

ANNOUNCER = logging.getLogger("lightning.pytorch.utilities.rank_zero")


def test_announcements_are_silenced_and_come_back(caplog):
    ANNOUNCER.setLevel(logging.INFO)
    with quiet_lightning():
        ANNOUNCER.info("tip")
        ANNOUNCER.warning("mind this")
    ANNOUNCER.info("later")
    assert [record.message for record in caplog.records] == ["mind this", "later"]


def test_levels_come_back_after_an_error():
    level = ANNOUNCER.level
    with pytest.raises(KeyError), quiet_lightning():
        raise KeyError
    assert ANNOUNCER.level == level


def test_only_warnings_that_do_not_hold_are_silenced():
    with quiet_lightning():
        warnings.warn("Found 3 module(s) in eval mode at the start of training", stacklevel=1)
        with pytest.warns(UserWarning, match="mine"):
            warnings.warn("mine", stacklevel=1)
