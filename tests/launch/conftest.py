from tests.contracts.conftest import play

__all__ = ["play"]
