-- compatible from 007
-- Controls for incidents: pauses of tasks, and changes that a bulk operation makes to jobs.
set local search_path to bellringer;

-- Tasks that are paused for a tenant: no run of them starts, whatever created it. While resumed_at is set, runs start
-- again, and those that the pause has held are released at release_rate.
create table task_pauses (
  tenant_id    integer not null references tenants,
  task_id      integer not null references tasks,
  paused_at    timestamptz not null,
  paused_by    text not null,
  reason       text,
  until_at     timestamptz,                     -- when it ends by itself; null: when it is resumed
  resumed_at   timestamptz,
  release_rate double precision check (release_rate > 0),  -- runs a second
  released_at  timestamptz,                     -- up to when the rate is used
  primary key (tenant_id, task_id)
);
alter table task_pauses enable row level security;
create policy tenant_rows on task_pauses using (tenant_id = (select current_tenant()));
-- Empty while no task is paused, so it costs the queue's writers nothing.
create index queue_task_paused on queue (tenant_id, task_id, available_at)
  where blocked & TASK_PAUSED = TASK_PAUSED;

-- Of `jobs.update`: the fields to set, as a merge patch. Of a revert: the operation whose changes it takes back.
alter table operations add column change jsonb;
alter table operations add column reverts bigint;

-- occurrences: first starts of runs that a schedule created, in the minute in which they were due; null: written by a
-- worker that does not count them. retried: starts of second and later attempts.
alter table usage add column occurrences bigint;
alter table usage add column retried bigint not null default 0;

-- The tenants' role has its privileges already where an earlier release has set it up.
do $$
begin
  if to_regprocedure('bellringer.tenant_role()') is null then return; end if;
  if to_regrole(bellringer.tenant_role()) is not null then
    execute format('grant select on bellringer.task_pauses to %I', bellringer.tenant_role());
  end if;
end $$;
