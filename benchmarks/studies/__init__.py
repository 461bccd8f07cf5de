"""Programs that answer one question each by training for minutes to hours; `make bench` leaves them out."""
