-- Standings sum the old buckets of a window once and keep the sums in memory. `settled_by` is the transaction that last moved `settled_ms`,
-- or booked into a bucket before it by whatever way: sums that were made under another one are void, in every replica. The id of a
-- transaction that was rolled back never comes again, so what was summed in it is void too.
ALTER TABLE cluster ADD COLUMN settled_ms bigint NOT NULL DEFAULT 0;
ALTER TABLE cluster ADD COLUMN settled_by bigint NOT NULL DEFAULT 0;

CREATE FUNCTION note_late_booking() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE cluster SET settled_by = pg_current_xact_id()::text::bigint
    WHERE cluster IN (SELECT DISTINCT b.cluster FROM booked b JOIN cluster c ON c.cluster = b.cluster WHERE b.bucket_ms < c.settled_ms);
    RETURN NULL;
END
$$;

CREATE TRIGGER late_insert AFTER INSERT ON usage_bucket REFERENCING NEW TABLE AS booked
    FOR EACH STATEMENT EXECUTE FUNCTION note_late_booking();
CREATE TRIGGER late_update AFTER UPDATE ON usage_bucket REFERENCING NEW TABLE AS booked
    FOR EACH STATEMENT EXECUTE FUNCTION note_late_booking();
