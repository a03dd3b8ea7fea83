"""The tests of all packages, and the benches. README.md says which goes where; no package imports anything of this."""
