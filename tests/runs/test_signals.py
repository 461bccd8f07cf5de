import os
import signal
import threading

from atoll.runs import stop_requests


def test_a_request_is_a_question():
    before = signal.getsignal(signal.SIGTERM)
    with stop_requests() as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_request_reaches_all_who_ask_and_what_must_not_wait():
    heard = []
    with stop_requests(lambda: heard.append("outer")) as outer:
        with stop_requests(lambda: heard.append("inner")) as inner:
            os.kill(os.getpid(), signal.SIGINT)
            assert inner()
        assert outer()
        assert heard == ["outer", "inner"]
        os.kill(os.getpid(), signal.SIGINT)
    assert heard == ["outer", "inner", "outer"]


def test_nobody_asks_another_thread():
    answers = []

    def ask():
        with stop_requests() as asked:
            answers.append(asked())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [False]
