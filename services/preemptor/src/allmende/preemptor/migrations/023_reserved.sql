-- Of a reservation that has come due: the nodes where room is made. Names, with a space between, as in `avoid_nodes`.
ALTER TABLE claim ADD COLUMN reserved_nodes text NOT NULL DEFAULT '';
