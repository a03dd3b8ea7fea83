-- Of a budget that is gone: the leaf that its jobs went to. NULL: nobody has said, as before there was a way to say it.
ALTER TABLE definition ADD COLUMN jobs_to text COLLATE "C";
