-- compatible from 007
-- Captured output of handlers: where a log line comes from. Null means `ctx.log`, as for all lines before this column.
alter table logs add column source text;  -- stdout, stderr, warnings or logging:NAME
