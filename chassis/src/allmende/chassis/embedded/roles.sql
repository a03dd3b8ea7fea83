-- One role and one schema of the same name for a service. Run by a superuser, once a database; running it again changes the password.
--   psql -v role=ledger -v password=... -f roles.sql
-- A service owns its schema, so it migrates it itself; it sees no other's. What a service may not do inside its own schema
-- (the ledger may not change postings) its own migrations take away.

\set ON_ERROR_STOP on
SET client_min_messages = warning;

BEGIN;

SELECT format('CREATE ROLE %I', :'role')
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'role') \gexec

ALTER ROLE :"role" WITH LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD :'password';

SELECT format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()) \gexec
SELECT format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), :'role') \gexec
REVOKE ALL ON SCHEMA public FROM PUBLIC;

CREATE SCHEMA IF NOT EXISTS :"role" AUTHORIZATION :"role";
REVOKE ALL ON SCHEMA :"role" FROM PUBLIC;
SELECT format('ALTER ROLE %I IN DATABASE %I SET search_path TO %I', :'role', current_database(), :'role') \gexec

COMMIT;
