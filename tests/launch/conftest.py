from tests.contracts.conftest import play, playground

__all__ = ["play", "playground"]
