-- A clock that a test moves, in place of the database's own.

-- name: one_partition
-- A day of history has three tables with their indexes, and a test may simulate years. An empty history therefore gets
-- a single partition, and every day counts as older than the installation.
do $$
declare
  parent text;
  child  regclass;
begin
  if exists (select 1 from bellringer.runs) or (select made_at = 'infinity' from bellringer.cluster) then
    return;
  end if;
  foreach parent in array array['runs', 'attempts', 'logs'] loop
    for child in
      select inhrelid::regclass from pg_inherits where inhparent = ('bellringer.' || parent)::regclass
    loop
      execute format('drop table %s', child);
    end loop;
    execute format('create table bellringer.%I partition of bellringer.%I default', parent || '_past', parent);
  end loop;
  update bellringer.cluster set made_at = 'infinity';
end $$;

-- name: install
create table if not exists bellringer.test_clock (
  only_row boolean primary key default true check (only_row), moment timestamptz not null);
create or replace function bellringer.now() returns timestamptz language sql stable parallel safe
  as 'select moment from bellringer.test_clock';
grant select on bellringer.test_clock to public;  -- read by connections that serve tenants

-- Moves the clock to the next instant at which something is due, at most to p_until, and returns what is due there. The
-- clock does not move while cohorts, timers or ends of pauses are due, unless p_schedulers is false. Without p_workers,
-- runs that become ready do not stop the clock. `waiting` counts the runs that no worker holds.
create or replace function bellringer.leap(
  p_until timestamptz, p_schedulers boolean, p_workers boolean, p_most integer,
  out now timestamptz, out cohort_next_at timestamptz[], out cohort_shard smallint[], out cohort_schedule_id integer[],
  out cohort_target_at timestamptz[], out timers boolean, out pauses boolean, out backfills boolean,
  out undecided boolean, out frozen boolean, out stuck boolean, out cancels boolean, out stops boolean,
  out expired boolean, out waiting bigint, out pools smallint[])
language plpgsql as $$
#variable_conflict use_column
declare
  was    constant timestamptz := bellringer.now();
  cohort timestamptz;
  timer  timestamptz;
  pause  timestamptz;
  later  timestamptz;
  ready  timestamptz;
begin
  leap.backfills := exists (select 1 from backfills where state = 'running');
  if p_schedulers then
    cohort := (select min(next_at) from cohorts);
    timer := (select min(due_at) from timers);
    pause := (select min(paused_until) from jobs where paused_until is not null and deleted_at is null);
  end if;
  later := least((select min(available_at) from queue where blocked & UNDECIDED = UNDECIDED and available_at > was),
                 (select min(to_at) from freezes where to_at > was),
                 (select min(expires_at) from queue where expires_at > was and worker_id is null),
                 (select min(deadline_at) from flows where finished_at is null and stopped is null
                   and deadline_at > was),
                 case when leap.backfills then (
                   select min(made_at + interval '1 minute' / rate) from backfills
                   where state = 'running' and made_at + interval '1 minute' / rate > was) end);
  if p_workers then
    ready := (select min(available_at) from queue where worker_id is null and blocked & ~LIMITED = 0
      and available_at > was);
  end if;
  leap.now := greatest(was, least(p_until, cohort, timer, pause, later, ready));
  if leap.now > was then
    update test_clock set moment = leap.now;
  end if;
  leap.timers := coalesce(timer <= leap.now, false);
  leap.pauses := coalesce(pause <= leap.now, false);
  if cohort <= leap.now then
    select array_agg(c.next_at), array_agg(c.shard), array_agg(c.schedule_id), array_agg(c.target_at)
    into cohort_next_at, cohort_shard, cohort_schedule_id, cohort_target_at
    from (select * from cohorts where next_at <= leap.now order by next_at, shard, schedule_id limit p_most) c;
  end if;
  select coalesce(bool_or(blocked & UNDECIDED = UNDECIDED and available_at <= leap.now), false),
    coalesce(bool_or(blocked & FROZEN = FROZEN), false),
         coalesce(bool_or(blocked & ~(LIMITED | OPEN_WORKFLOW) <> 0) and bool_and(worker_id is null), false),
         coalesce(bool_or(worker_id is not null and cancel_requested), false),
         coalesce(bool_or(cancel_requested and blocked & OPEN_WORKFLOW = OPEN_WORKFLOW), false) or exists (
           select 1 from flows where finished_at is null and stopped is null and deadline_at <= leap.now),
         coalesce(bool_or(expires_at <= leap.now and worker_id is null), false),
         count(*) filter (where worker_id is null),
         array_agg(distinct pool_id) filter (where worker_id is null and blocked & ~LIMITED = 0
           and available_at <= leap.now)
  into leap.undecided, leap.frozen, leap.stuck, leap.cancels, leap.stops, leap.expired, leap.waiting, leap.pools
  from queue;
end $$;

-- name: put
insert into bellringer.test_clock (moment) values ($1)
on conflict (only_row) do update set moment = excluded.moment

-- name: leap
select now, cohort_next_at, cohort_shard, cohort_schedule_id, cohort_target_at, timers, pauses, backfills, undecided,
       frozen, stuck, cancels, stops, expired, waiting, pools
from bellringer.leap($1, $2, $3, $4)
