-- compatible from 007
-- Deadlines of runs, automatic pauses, and state that one run or attempt leaves for the next one.
set local search_path to bellringer;

alter table jobs
  add expires_in interval,                      -- a run that has not started this long after its time does not run
  add pause_after_failures integer;             -- dead runs in a row after which the job is paused
-- contract: only the function terms_of uses this type, and it is replaced together with it; no program passes it
alter type job_terms add attribute expires_in interval, add attribute pause_after_failures integer;
alter table members add expires_in interval;

alter table queue
  add expires_at timestamptz,                   -- no attempt begins at or after this time; null: no limit
  add resume_from jsonb;                        -- the last progress details of an earlier attempt
alter table timers
  add expires_at timestamptz,                   -- of far retries; a first attempt gets it when the timer fires
  add resume_from jsonb;
alter table dead_letters add resume_from jsonb;

-- Only runs with a deadline are in this index, so that other runs cost nothing.
create index queue_expiring on queue (expires_at) where expires_at is not null and worker_id is null;

-- What the runs of a job leave behind: dead runs in a row, and the latest result. Only jobs with pause_after_failures
-- or keep_result have a row.
create table job_outcomes (
  job_id        uuid primary key,
  tenant_id     integer not null,
  failures      integer not null default 0,     -- dead runs since the last success or resume
  scheduled_for timestamptz,                    -- the run of `result`: the latest occurrence that succeeded
  slot          bigint,
  result        jsonb
);
-- `settle` looks here for jobs that have or need such a row. It is empty unless someone uses these options.
create index jobs_with_outcomes on jobs (job_id)
  where (pause_after_failures is not null or spec ? 'keep_result') and deleted_at is null;

-- Jobs that were paused because their runs died, for the overview.
create index jobs_paused_by_system on jobs (tenant_id, paused_at)
  where paused_by = 'system' and paused_at is not null and deleted_at is null;

alter table job_outcomes enable row level security;
create policy tenant_rows on job_outcomes using (tenant_id = (select current_tenant()));
-- A new installation gets its privileges from set_up_row_security, which does not run again once they are given.
do $$
begin
  if to_regprocedure('bellringer.tenant_role()') is null then
    return;
  end if;
  if to_regrole(bellringer.tenant_role()) is not null then
    execute format('grant select, insert, update, delete on bellringer.job_outcomes to %I', bellringer.tenant_role());
  end if;
end $$;

-- A run that has ended, as `record_outcomes` needs it.
create type job_ending as (
  job_id        uuid,
  tenant_id     integer,
  scheduled_for timestamptz,
  slot          bigint,
  attempt       integer,
  cause         cause,
  ends_as       text,
  ended_ago     double precision,  -- seconds
  result        text               -- JSON
);
