-- Lists of runs by typed filters, replays, and operations: one request that is worked off in bounded passes.
set local search_path to bellringer;

-- Waiting sends and far retries of a tenant, in the order of lists.
create index timers_listed on timers (tenant_id, (attempt > 0), scheduled_for, shard, job_id, slot);

-- Dead letters by what they died of, so that the groups are found without reading their letters.
create index dead_letters_alike on dead_letters (tenant_id, fingerprint, died_at);

-- The run that a replay repeats: the same occurrence in another slot.
alter table runs add column of_slot bigint;

-- What a list keeps to; null: all.
create type run_filter as (job uuid, states text[], task text, pool text, cause cause, worker integer, tag text, q text,
                           from_at timestamptz, to_at timestamptz);

-- These functions read across the walls between tenants, so they act only for the tenant that their connection is told of.
create function filter_of(p_tenant integer, p_filter jsonb) returns run_filter
language plpgsql stable set search_path = bellringer, pg_temp as $$
begin
  if p_tenant <> coalesce(nullif(current_setting('bellringer.tenant', true), '')::integer, p_tenant) then
    raise insufficient_privilege using message = 'that is another tenant''s';
  end if;
  return jsonb_populate_record(null::run_filter, p_filter);
end $$;

create function task_named(p_name text) returns integer language sql stable set search_path = bellringer, pg_temp as
$$ select coalesce((select task_id from tasks where name = p_name), case when p_name is not null then -1 end) $$;

create function pool_named(p_name text) returns smallint language sql stable set search_path = bellringer, pg_temp as
$$ select coalesce((select pool_id from pools where name = p_name), case when p_name is not null then -1::smallint end) $$;

create function queue_state(q queue) returns text language sql immutable parallel safe as $$
  select case when q.worker_id is not null or q.blocked & 128 = 128 then 'running' when q.blocked & ~224 <> 0 then 'blocked'
              when q.attempt > 0 then 'retrying' else 'queued' end
$$;

-- A timer without an attempt has not been born: it waits for its time.
create function timer_state(t timers) returns text language sql immutable parallel safe as
$$ select case when t.attempt > 0 then 'retrying' else 'waiting' end $$;

-- Where one run is. Lists do the same for many in one plan: a function with look-ups in it is planned anew for each call.
create function state_of(p_job uuid, p_at timestamptz, p_slot bigint) returns text language sql stable as $$
  select coalesce(
    (select bellringer.queue_state(q) from bellringer.queue q where q.job_id = p_job and q.scheduled_for = p_at and q.slot = p_slot),
    (select bellringer.timer_state(t) from bellringer.timers t where t.job_id = p_job and t.scheduled_for = p_at and t.slot = p_slot),
    (select a.ends_as::text from bellringer.attempts a
     where a.job_id = p_job and a.scheduled_for = p_at and a.slot = p_slot and a.ends_as is not null
     order by a.finished_at desc, a.attempt desc limit 1),
    'queued')
$$;

-- The newest runs before (b_at, b_shard, b_job, b_slot), by their times, and shard by shard. It looks at no more than p_scan runs,
-- and weighs no more than p_weigh of them, which costs more: it then answers fewer than p_most, and where it stopped. One row at
-- least. With `enable_sort` off the index gives the order, and only what shares an instant and a shard is sorted, whatever the
-- planner believes.
create function list_runs(p_tenant integer, p_filter jsonb, b_at timestamptz, b_shard smallint, b_job uuid, b_slot bigint,
                          p_scan integer, p_weigh integer, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, shard smallint, scanned bigint, stop_at timestamptz,
               stop_shard smallint, stop_job uuid, stop_slot bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
  f       run_filter := filter_of(p_tenant, p_filter);
  f_task  integer := task_named(f.task);
  f_pool  smallint := pool_named(f.pool);
  waiting boolean := coalesce('waiting' = any (f.states), false);
  others  boolean := f.states is null or f.states <> '{waiting}';
  high    timestamptz := least(f.to_at, b_at + interval '1 microsecond', 'infinity');
  low     timestamptz := coalesce(f.from_at, '-infinity');
begin
  return query
  with seen as materialized (
    select s.*, row_number() over (order by s.scheduled_for desc, s.shard desc, s.job_id desc, s.slot desc) as nth from (
      (select r.job_id, r.scheduled_for, r.slot, r.shard, r.task_id, r.pool_id, r.cause from runs r
       where others and f.job is null and r.tenant_id = p_tenant and r.scheduled_for >= low and r.scheduled_for < high
         and (b_at is null or (r.scheduled_for, r.shard, r.job_id, r.slot) < (b_at, b_shard, b_job, b_slot))
       order by r.scheduled_for desc, r.shard desc, r.job_id desc, r.slot desc limit p_scan)
      union all
      (select r.job_id, r.scheduled_for, r.slot, r.shard, r.task_id, r.pool_id, r.cause from runs r
       where others and r.job_id = f.job and r.tenant_id + 0 = p_tenant and r.scheduled_for >= low and r.scheduled_for < high
         and (b_at is null or (r.scheduled_for, r.slot) < (b_at, b_slot))
       order by r.scheduled_for desc, r.slot desc limit p_scan)
      union all
      (select t.job_id, t.scheduled_for, t.slot, t.shard, t.task_id, t.pool_id, t.cause from timers t
       where waiting and t.tenant_id = p_tenant and (t.attempt > 0) = false and t.scheduled_for >= low and t.scheduled_for < high
         and (b_at is null or (t.scheduled_for, t.shard, t.job_id, t.slot) < (b_at, b_shard, b_job, b_slot))
       order by t.scheduled_for desc, t.shard desc, t.job_id desc, t.slot desc limit p_scan)) s
    order by nth limit p_scan),
  weighed as materialized (                              -- a CTE is read in the order in which it was filled
    select s.* from seen s
    where (f.job is null or s.job_id = f.job) and (f.task is null or s.task_id = f_task) and (f.pool is null or s.pool_id = f_pool)
      and (f.cause is null or s.cause = f.cause)
    limit p_weigh),
  kept as materialized (
    select w.* from weighed w
    where (f.states is null or coalesce(
        (select queue_state(q) from queue q where q.job_id = w.job_id and q.scheduled_for = w.scheduled_for and q.slot = w.slot offset 0),
        (select timer_state(t) from timers t where t.job_id = w.job_id and t.scheduled_for = w.scheduled_for and t.slot = w.slot offset 0),
        (select a.ends_as::text from attempts a
         where a.job_id = w.job_id and a.scheduled_for = w.scheduled_for and a.slot = w.slot and a.ends_as is not null
         order by a.finished_at desc, a.attempt desc limit 1),
        'queued') = any (f.states))
      and (f.tag is null or exists (select 1 from jobs j where j.job_id = w.job_id and f.tag = any (j.tags) offset 0))
      and (f.q is null or exists (
        select 1 from tasks t left join lateral (select j.name from jobs j where j.job_id = w.job_id offset 0) j on true
        where t.task_id = w.task_id and position(lower(f.q) in lower(concat_ws(' ', j.name, t.name))) > 0 offset 0))
      and (f.worker is null
        or exists (select 1 from queue q where q.job_id = w.job_id and q.scheduled_for = w.scheduled_for and q.slot = w.slot
                     and q.worker_id + 0 = f.worker offset 0)
        or exists (select 1 from attempts a where a.job_id = w.job_id and a.scheduled_for = w.scheduled_for and a.slot = w.slot
                     and a.worker_id = f.worker offset 0))
    limit p_most),
  tail as (
    select case when (select count(*) from kept) = p_most then (select max(nth) from kept)
                when (select count(*) from weighed) = p_weigh then (select max(nth) from weighed)
                when (select count(*) from seen) = p_scan then p_scan end as nth)
  select k.job_id, k.scheduled_for, k.slot, k.shard, coalesce(t.nth, (select count(*) from seen)),
         s.scheduled_for, s.shard, s.job_id, s.slot
  from tail t left join seen s on s.nth = t.nth left join kept k on true order by k.nth;
end $$;

-- Workflow runs whose nodes are under way: they run, though no worker holds them.
create index queue_opened on queue (tenant_id, job_id) where blocked & 128 = 128;

-- Unfinished runs, from the queue, as long as it holds no more than p_scan rows; `scanned` beyond that says that it holds more.
create function list_queue(p_tenant integer, p_filter jsonb, b_at timestamptz, b_shard smallint, b_job uuid, b_slot bigint,
                           p_scan integer, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, shard smallint, scanned bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  f      run_filter := filter_of(p_tenant, p_filter);
  f_task integer := task_named(f.task);
  f_pool smallint := pool_named(f.pool);
begin
  return query
  with seen as materialized (
    (select q.job_id, q.scheduled_for, q.slot, q.shard, q.task_id, q.pool_id, q.cause, q.tenant_id, queue_state(q) as state from queue q
     where f.states = '{running}' and q.worker_id is not null order by q.worker_id limit p_scan + 1)
    union all
    (select q.job_id, q.scheduled_for, q.slot, q.shard, q.task_id, q.pool_id, q.cause, q.tenant_id, 'running' from queue q
     where f.states = '{running}' and q.blocked & 128 = 128 and q.tenant_id = p_tenant order by q.job_id limit p_scan + 1)
    union all
    (select q.job_id, q.scheduled_for, q.slot, q.shard, q.task_id, q.pool_id, q.cause, q.tenant_id, queue_state(q) from queue q
     where f.states <> '{running}' order by q.job_id limit p_scan + 1)
    union all
    (select t.job_id, t.scheduled_for, t.slot, t.shard, t.task_id, t.pool_id, t.cause, t.tenant_id, 'retrying' from timers t
     where 'retrying' = any (f.states) and t.tenant_id = p_tenant and (t.attempt > 0) = true
     order by t.scheduled_for desc, t.shard desc, t.job_id desc, t.slot desc limit p_scan + 1)),
  kept as materialized (
    select s.* from seen s
    where s.tenant_id = p_tenant and s.state = any (f.states) and (f.job is null or s.job_id = f.job)
      and (f.task is null or s.task_id = f_task) and (f.pool is null or s.pool_id = f_pool) and (f.cause is null or s.cause = f.cause)
      and (f.from_at is null or s.scheduled_for >= f.from_at) and (f.to_at is null or s.scheduled_for < f.to_at)
      and (b_at is null or (s.scheduled_for, s.shard, s.job_id, s.slot) < (b_at, b_shard, b_job, b_slot))
      and (f.tag is null or exists (select 1 from jobs j where j.job_id = s.job_id and f.tag = any (j.tags) offset 0))
      and (f.q is null or exists (
        select 1 from tasks t left join lateral (select j.name from jobs j where j.job_id = s.job_id offset 0) j on true
        where t.task_id = s.task_id and position(lower(f.q) in lower(concat_ws(' ', j.name, t.name))) > 0 offset 0))
      and (f.worker is null
        or exists (select 1 from queue q where q.job_id = s.job_id and q.scheduled_for = s.scheduled_for and q.slot = s.slot
                     and q.worker_id + 0 = f.worker offset 0)
        or exists (select 1 from attempts a where a.job_id = s.job_id and a.scheduled_for = s.scheduled_for and a.slot = s.slot
                     and a.worker_id = f.worker offset 0))
    order by s.scheduled_for desc, s.shard desc, s.job_id desc, s.slot desc limit p_most)
  select k.job_id, k.scheduled_for, k.slot, k.shard, n.scanned
  from (select case when count(*) > p_scan then p_scan + 1          -- how many rows others have is nobody's business
                    else count(*) filter (where tenant_id = p_tenant) end as scanned from seen) n left join kept k on true
  order by k.scheduled_for desc, k.shard desc, k.job_id desc, k.slot desc;
end $$;

-- Runs that ended otherwise than well, by when they ended, the newest first; those before (b_ended, …). As list_runs.
create function list_ended(p_tenant integer, p_filter jsonb, b_ended timestamptz, b_at timestamptz, b_job uuid, b_slot bigint,
                           p_scan integer, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, ended_at timestamptz, scanned bigint, stop_ended timestamptz,
               stop_at timestamptz, stop_job uuid, stop_slot bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
  f      run_filter := filter_of(p_tenant, p_filter);
  f_task integer := task_named(f.task);
  f_pool smallint := pool_named(f.pool);
begin
  return query
  with seen as materialized (
    select s.*, row_number() over (order by s.finished_at desc, s.job_id desc, s.scheduled_for desc, s.slot desc, s.attempt desc) as nth
    from unnest(f.states) w (state) cross join lateral (
      select a.job_id, a.scheduled_for, a.slot, a.finished_at, a.attempt from attempts a
      where a.tenant_id = p_tenant and a.ends_as = w.state::run_state and a.ends_as <> 'succeeded'
        and (f.from_at is null or a.scheduled_for >= f.from_at) and (f.to_at is null or a.scheduled_for < f.to_at)
        and (b_ended is null or (a.finished_at <= b_ended and (a.finished_at, a.job_id, a.scheduled_for, a.slot) < (b_ended, b_job, b_at, b_slot)))
      order by a.finished_at desc, a.job_id desc, a.scheduled_for desc, a.slot desc, a.attempt desc limit p_scan) s
    order by nth limit p_scan),
  kept as materialized (
    select s.* from seen s
    cross join lateral (select r.task_id, r.pool_id, r.cause from runs r
                        where r.job_id = s.job_id and r.scheduled_for = s.scheduled_for and r.slot = s.slot offset 0) r
    where (f.task is null or r.task_id = f_task) and (f.pool is null or r.pool_id = f_pool) and (f.cause is null or r.cause = f.cause)
      and not exists (select 1 from queue q where q.job_id = s.job_id and q.scheduled_for = s.scheduled_for and q.slot = s.slot offset 0)
      and not exists (select 1 from timers t where t.job_id = s.job_id and t.scheduled_for = s.scheduled_for and t.slot = s.slot offset 0)
      and not exists (select 1 from attempts l                   -- it was revived, and has ended again
                      where l.job_id = s.job_id and l.scheduled_for = s.scheduled_for and l.slot = s.slot and l.ends_as is not null
                        and (l.finished_at, l.attempt) > (s.finished_at, s.attempt) offset 0)
      and (f.tag is null or exists (select 1 from jobs j where j.job_id = s.job_id and f.tag = any (j.tags) offset 0))
      and (f.q is null or exists (
        select 1 from tasks t left join lateral (select j.name from jobs j where j.job_id = s.job_id offset 0) j on true
        where t.task_id = r.task_id and position(lower(f.q) in lower(concat_ws(' ', j.name, t.name))) > 0 offset 0))
      and (f.worker is null
        or exists (select 1 from queue q where q.job_id = s.job_id and q.scheduled_for = s.scheduled_for and q.slot = s.slot
                     and q.worker_id + 0 = f.worker offset 0)
        or exists (select 1 from attempts a where a.job_id = s.job_id and a.scheduled_for = s.scheduled_for and a.slot = s.slot
                     and a.worker_id = f.worker offset 0))
    limit p_most),
  tail as (
    select case when (select count(*) from kept) = p_most then (select max(nth) from kept)
                when (select count(*) from seen) = p_scan then p_scan end as nth)
  select k.job_id, k.scheduled_for, k.slot, k.finished_at, coalesce(t.nth, (select count(*) from seen)),
         s.finished_at, s.scheduled_for, s.job_id, s.slot
  from tail t left join seen s on s.nth = t.nth left join kept k on true order by k.nth;
end $$;

-- The same occurrence once more, with what it is given now. Answers the slot of the new run; no slot: there is no such run
-- (state is null), or it is not one that has ended.
create function replay(p_job uuid, p_at timestamptz, p_slot bigint, p_tenant integer, p_spec jsonb, p_reason text,
                       out o_slot bigint, out o_state text)
language plpgsql security definer set search_path = bellringer, pg_temp as $$
declare
  r runs;
  j jobs;
begin
  perform filter_of(p_tenant, '{}');
  select * into j from jobs where job_id = p_job and tenant_id = p_tenant for share;     -- a pause or a deletion comes before or after, not between
  select * into r from runs where job_id = p_job and scheduled_for = p_at and slot = p_slot and tenant_id + 0 = p_tenant;
  if r.job_id is null then return; end if;
  o_state := state_of(p_job, p_at, p_slot);
  if o_state not in ('succeeded', 'dead', 'cancelled', 'skipped') then return; end if;
  if j.deleted_at is not null then o_state := 'deleted'; return; end if;
  loop
    select max(slot) + 1 into o_slot from runs where job_id = p_job and scheduled_for = p_at and slot < 1::bigint << 40;
    o_slot := coalesce(o_slot, 1);
    insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause,
                      born_as, reason, spec, of_slot)
    values (p_job, p_at, o_slot, bellringer.now(), 0, r.tenant_id, r.task_id, r.revision, r.shard, r.pool_id, r.priority, 'replay',
            'queued', p_reason, p_spec, p_slot)
    on conflict do nothing;
    exit when found;
  end loop;
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause, spec,
                     key_id, cap, blocked)
  values (p_job, p_at, o_slot, bellringer.now(), r.tenant_id, r.task_id, r.revision, r.shard, r.pool_id, r.priority, 'replay', p_spec,
          j.key_id, j.cap, case when j.key_id is null then 0 else 32 end);
  perform note(p_tenant, 'run.replayed', 'run', run_target(p_job, p_at, p_slot), jsonb_build_object('slot', o_slot, 'reason', p_reason));
end $$;

-- The newest dead letters before (b_died, …). It looks at no more than p_scan of them, as list_runs.
create function list_letters(p_tenant integer, p_fingerprint text, p_job uuid, p_task text, b_died timestamptz, b_job uuid, b_at timestamptz,
                             b_slot bigint, p_scan integer, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, died_at timestamptz, scanned bigint,
               stop_died timestamptz, stop_job uuid, stop_at timestamptz, stop_slot bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
  f_task integer := task_named(p_task);
begin
  perform filter_of(p_tenant, '{}');
  return query
  with seen as materialized (
    select s.*, row_number() over (order by s.died_at desc, s.job_id desc, s.scheduled_for desc, s.slot desc) as nth from (
      (select d.job_id, d.scheduled_for, d.slot, d.died_at, d.task_id from dead_letters d
       where p_fingerprint is null and d.tenant_id = p_tenant
         and (b_died is null or (d.died_at <= b_died and (d.died_at, d.job_id, d.scheduled_for, d.slot) < (b_died, b_job, b_at, b_slot)))
       order by d.died_at desc, d.job_id desc, d.scheduled_for desc, d.slot desc limit p_scan)
      union all
      (select d.job_id, d.scheduled_for, d.slot, d.died_at, d.task_id from dead_letters d
       where d.fingerprint = p_fingerprint and d.tenant_id = p_tenant
         and (b_died is null or (d.died_at <= b_died and (d.died_at, d.job_id, d.scheduled_for, d.slot) < (b_died, b_job, b_at, b_slot)))
       order by d.died_at desc, d.job_id desc, d.scheduled_for desc, d.slot desc limit p_scan)) s
    order by nth limit p_scan),
  kept as materialized (
    select s.* from seen s where (p_job is null or s.job_id = p_job) and (p_task is null or s.task_id = f_task) limit p_most),
  tail as (
    select case when (select count(*) from kept) = p_most then (select max(nth) from kept)
                when (select count(*) from seen) = p_scan then p_scan end as nth)
  select k.job_id, k.scheduled_for, k.slot, k.died_at, coalesce(t.nth, (select count(*) from seen)),
         s.died_at, s.job_id, s.scheduled_for, s.slot
  from tail t left join seen s on s.nth = t.nth left join kept k on true order by k.nth;
end $$;

-- Groups of dead letters by their fingerprints, those after one: from each to the next by the index. Of each group are looked at
-- no more than p_counted letters to count it, and a few of the newest for what is told of it.
create function letter_groups(p_tenant integer, p_after text, p_limit integer, p_counted integer)
returns table (fingerprint text, count bigint, first_died timestamptz, last_died timestamptz, reason text, error jsonb,
               job_ids uuid[], ats timestamptz[], slots bigint[])
language plpgsql stable security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  perform filter_of(p_tenant, '{}');
  return query
  with recursive marks (fingerprint) as (
    (select d.fingerprint from dead_letters d where d.tenant_id = p_tenant and d.fingerprint > coalesce(p_after, '')
     order by d.fingerprint limit 1)
    union all
    select (select d.fingerprint from dead_letters d where d.tenant_id = p_tenant and d.fingerprint > m.fingerprint
            order by d.fingerprint limit 1)
    from marks m where m.fingerprint is not null),
  picked as materialized (select m.fingerprint from marks m where m.fingerprint is not null limit p_limit)
  select s.fingerprint,
         (select count(*) from (select 1 from dead_letters d where d.tenant_id = p_tenant and d.fingerprint = s.fingerprint limit p_counted) c),
         (select d.died_at from dead_letters d where d.tenant_id = p_tenant and d.fingerprint = s.fingerprint order by d.died_at limit 1),
         n.died_ats[1], n.reasons[1], n.errors[1], n.job_ids, n.ats, n.slots
  from picked s cross join lateral (
    select array_agg(d.died_at) as died_ats, array_agg(d.reason) as reasons, array_agg(d.error) as errors, array_agg(d.job_id) as job_ids,
           array_agg(d.scheduled_for) as ats, array_agg(d.slot) as slots
    from (select * from dead_letters d where d.tenant_id = p_tenant and d.fingerprint = s.fingerprint order by d.died_at desc limit 20) d) n
  order by s.fingerprint;
end $$;

-- One request that concerns many: worked off item by item in bounded passes, by whichever node comes. What it concerns was
-- named (ids), or is found by a filter; `position` or `cursor` says how far it has come. Each item is done at least once,
-- and doing it again changes nothing.
create table operations (
  operation_id bigint generated always as identity primary key,
  tenant_id    integer not null,
  action       text not null,
  filter       jsonb,                           -- of the kind that the action's list takes
  ids          text[],
  position     integer not null default 0,      -- of ids: how many were looked at
  cursor       jsonb,                           -- of a filter: where the last pass ended
  total        bigint not null,                 -- as counted when it was asked for …
  total_is_least boolean not null default false,-- … where there may be more
  done         bigint not null default 0,
  skipped      bigint not null default 0,       -- there was nothing to do
  failed       bigint not null default 0,
  failures     jsonb not null default '[]',     -- the first few
  rate         double precision check (rate > 0),  -- items a minute; null: as fast as it goes
  paced_at     timestamptz not null,            -- when the rate allows the next item; without a rate, when it last had its turn
  spent_until  timestamptz,                     -- when the tenant's quota of runs allows the next one, after those that it made
  state        text not null default 'running' check (state in ('running', 'done', 'aborted')),
  who          text not null,
  reason       text,
  created_at   timestamptz not null,
  ended_at     timestamptz,
  check ((filter is null) <> (ids is null))
);
create index operations_open on operations (tenant_id, paced_at, operation_id) where state = 'running';
create index operations_spent on operations (tenant_id, spent_until);
create index operations_newest on operations (tenant_id, operation_id);

-- Whether a tenant may have one more: counted under its own lock, in a new statement, so that two never take the last place.
create function room_for(p_tenant integer, p_what text, p_most integer) returns boolean
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '5s' as $$
begin
  perform pg_advisory_xact_lock(84, p_tenant);
  return p_most > case p_what
    when 'freeze' then (select count(*) from freezes where tenant_id = p_tenant and to_at > bellringer.now())
    when 'operation' then (select count(*) from operations where tenant_id = p_tenant and state = 'running')
    when 'webhook endpoint' then (select count(*) from webhook_endpoints where tenant_id = p_tenant) end;
end $$;

-- Run a job by hand for an operation. The key is that of the operation, so that once is enough however often it is asked.
-- Answers whether there is such a job.
create function run_for(p_job uuid, p_tenant integer, p_operation bigint) returns boolean
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  o operations;
  n integer;
begin
  select * into o from operations where operation_id = p_operation and tenant_id = p_tenant;
  perform 1 from jobs where job_id = p_job and tenant_id = p_tenant and deleted_at is null for share;
  if not found or o.operation_id is null then return false; end if;
  perform ensure_days(array[day_of(o.created_at)]);
  insert into runs (job_id, scheduled_for, slot, fired_at, token, tenant_id, task_id, revision, shard, pool_id, priority, cause, born_as,
                    reason)
  select job_id, o.created_at, (1::bigint << 39) + p_operation, bellringer.now(), 0, tenant_id, task_id, revision, shard, pool_id,
         priority, 'manual', 'queued', o.reason
  from jobs where job_id = p_job on conflict do nothing;
  get diagnostics n = row_count;
  insert into queue (job_id, scheduled_for, slot, available_at, tenant_id, task_id, revision, shard, pool_id, priority, cause,
                     key_id, cap, blocked)
  select job_id, o.created_at, (1::bigint << 39) + p_operation, bellringer.now(), tenant_id, task_id, revision, shard, pool_id, priority,
         'manual', key_id, cap, case when key_id is null then 0 else 32 end
  from jobs where job_id = p_job and n = 1;
  if n = 1 then perform note(p_tenant, 'run.triggered', 'run', run_target(p_job, o.created_at, (1::bigint << 39) + p_operation), null); end if;
  return true;
end $$;
