-- What the console reads: marks of change, the newest runs of jobs, and how the last attempts went. Everything stops at a limit, by an
-- index that gives the order; the plans are pinned, because days that have just begun have no statistics.
set local search_path to bellringer;

create index troubles_of_tenant on troubles (tenant_id, kind, since);
create index jobs_resting on jobs (tenant_id) where paused_at is not null and deleted_at is null;

-- A number that a browser can hold exactly, and that differs where the text does.
create function mark(p_text text) returns bigint language sql immutable parallel safe as
$$ select hashtextextended(p_text, 0) & 9007199254740991 $$;

-- For each tenant, marks that differ when its runs, jobs or dead letters have changed, or who works and fires: of what is newest, and
-- of the first of what is many. Started and busy are summed up by workers as they beat: they tell of runs too short to be seen. The
-- newest number of a tenant is looked for between two rows: with the tenant as an equal, the planner may walk down all numbers.
create function marks(p_tenants integer[])
returns table (tenant_id integer, runs bigint, jobs bigint, dead bigint, workers bigint, events bigint)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
begin
  return query
  with live as materialized (
    select w.worker_id, w.state, w.asked from workers w where w.state in ('live', 'draining') limit 500),
  staff as materialized (
    select mark(concat((select string_agg(concat(l.worker_id, l.state, l.asked), ' ') from live l), (
      select string_agg(concat(n.node_id, n.shards, n.waits_for), ' ') from (
        select * from nodes n where n.seen_at > clock_timestamp() - interval '30 s' limit 500) n))) as mark)
  select t.tenant_id, mark(concat_ws(' ', born.at, born.many, ready.marks, held.many, held.since, held.progress, used.started, used.busy, ended.at)),
         coalesce(changed.audit_id, 0), mark(concat_ws(' ', letters.many, letters.died_at)), staff.mark, coalesce(told.event_id, 0)
  from unnest(p_tenants) t (tenant_id) cross join staff
  left join lateral (
    select r.at, (select count(*) from (select 1 from runs s where s.tenant_id = t.tenant_id and s.scheduled_for = r.at limit 1000) s) as many
    from (select r.scheduled_for as at from runs r
          where r.tenant_id = t.tenant_id and r.scheduled_for > bellringer.now() - interval '1 day'
            and r.scheduled_for < bellringer.now() + interval '10 s'
          order by r.scheduled_for desc, r.shard desc limit 1) r) born on true
  left join lateral (
    select string_agg(concat(p.pool_id, ':', q.many, q.at), ' ') as marks from (select pool_id from pools limit 200) p cross join lateral (
      select count(*) as many, max(q.available_at) as at from (
        select q.available_at from queue q
        where q.pool_id = p.pool_id and q.tenant_id = t.tenant_id and q.worker_id is null and q.blocked = 0 limit 200) q) q) ready on true
  left join lateral (
    select count(*) as many, sum((extract(epoch from h.claimed_at) * 1000)::bigint) as since, sum(hashtext(h.progress::text)) as progress from (
      select q.claimed_at, q.progress from live l cross join lateral (
        select * from queue q where q.worker_id = l.worker_id and q.tenant_id = t.tenant_id limit 100) q
      limit 2000) h) held on true
  left join lateral (
    select sum(u.started) as started, sum(u.busy_ms) as busy from usage u
    where u.tenant_id = t.tenant_id and u.minute >= bellringer.now() - interval '3 minutes') used on true
  left join lateral (
    select string_agg(a.finished_at::text, ' ') as at from unnest(array['dead', 'cancelled', 'skipped']::run_state[]) s (ends_as) cross join lateral (
      select a.finished_at from attempts a
      where a.tenant_id = t.tenant_id and a.ends_as = s.ends_as and a.ends_as <> 'succeeded' and a.scheduled_for > bellringer.now() - interval '1 day'
      order by a.finished_at desc limit 1) a) ended on true
  left join lateral (
    select a.audit_id from audit a
    where (a.tenant_id, a.audit_id) > (t.tenant_id, 0) and (a.tenant_id, a.audit_id) < (t.tenant_id + 1, 0)
    order by a.tenant_id desc, a.audit_id desc limit 1) changed on true
  left join lateral (
    select count(*) as many, max(d.died_at) as died_at from (
      select d.died_at from dead_letters d where d.tenant_id = t.tenant_id order by d.died_at desc limit 1000) d) letters on true
  left join lateral (
    select e.event_id from events e
    where (e.tenant_id, e.event_id) > (t.tenant_id, 0) and (e.tenant_id, e.event_id) < (t.tenant_id + 1, 0)
    order by e.tenant_id desc, e.event_id desc limit 1) told on true;
end $$;

-- The newest runs of jobs before (b_at, b_slot), from p_from on, each with where it is. Of a job: p_most at most.
create function last_runs(p_tenant integer, p_jobs uuid[], p_from timestamptz, b_at timestamptz, b_slot bigint, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, cause text, state text, reason text, first_started_at timestamptz,
               started_at timestamptz, finished_at timestamptz)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
begin
  return query
  select r.job_id, r.scheduled_for, r.slot, r.cause::text, coalesce(q.state, m.state, e.ends_as::text, 'queued'),
         left(coalesce(e.error ->> 'reason', r.reason, ''), 500), f.first_started_at, coalesce(q.claimed_at, e.started_at), e.finished_at
  from unnest(p_jobs) u (id)
  cross join lateral (
    select * from runs r
    where r.job_id = u.id and r.tenant_id + 0 = p_tenant and r.scheduled_for >= p_from and (r.scheduled_for, r.slot) < (b_at, b_slot)
      and r.scheduled_for <= b_at
    order by r.scheduled_for desc, r.slot desc limit p_most) r
  left join lateral (
    select queue_state(q) as state, q.claimed_at from queue q
    where q.job_id = r.job_id and q.scheduled_for = r.scheduled_for and q.slot = r.slot offset 0) q on true
  left join lateral (
    select timer_state(m) as state from timers m where m.job_id = r.job_id and m.scheduled_for = r.scheduled_for and m.slot = r.slot offset 0) m on true
  left join lateral (
    select min(a.started_at) as first_started_at from attempts a
    where a.job_id = r.job_id and a.scheduled_for = r.scheduled_for and a.slot = r.slot) f on true
  left join lateral (
    select a.ends_as, a.error, a.started_at, a.finished_at from attempts a
    where a.job_id = r.job_id and a.scheduled_for = r.scheduled_for and a.slot = r.slot and a.ends_as is not null
    order by a.finished_at desc, a.attempt desc limit 1) e on true;
end $$;

-- The newest attempts of a job, whatever became of them.
create function last_tries(p_tenant integer, p_job uuid, p_most integer)
returns table (scheduled_for timestamptz, attempt integer, outcome text, ends_as text, started_at timestamptz, finished_at timestamptz)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
begin
  return query
  select a.scheduled_for, a.attempt, a.outcome::text, a.ends_as::text, a.started_at, a.finished_at from attempts a
  where a.job_id = p_job and a.tenant_id + 0 = p_tenant
  order by a.scheduled_for desc, a.slot desc, a.attempt desc limit p_most;
end $$;

-- The attempts of a tenant's newest runs between two instants: one row for each, and one for a run that has none.
create function tries_of(p_tenant integer, p_from timestamptz, p_to timestamptz, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, task text, jitter_by interval, attempt integer, outcome text, ends_as text,
               started_at timestamptz, finished_at timestamptz)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
begin
  return query
  select r.job_id, r.scheduled_for, r.slot, t.name, case when r.cause = 'schedule' then j.jitter_by end, a.attempt, a.outcome::text,
         a.ends_as::text, a.started_at, a.finished_at
  from (
    select r.job_id, r.scheduled_for, r.slot, r.task_id, r.cause from runs r
    where r.tenant_id = p_tenant and r.scheduled_for >= p_from and r.scheduled_for < p_to
    order by r.scheduled_for desc, r.shard desc limit p_most) r
  join tasks t on t.task_id = r.task_id
  left join lateral (select j.jitter_by from jobs j where j.job_id = r.job_id offset 0) j on true
  left join lateral (
    select * from attempts a
    where a.job_id = r.job_id and a.scheduled_for = r.scheduled_for and a.slot = r.slot limit 10) a on true;
end $$;

-- How many of a job's runs, and of them how many gave up, were scheduled for each of these days; p_most of a day are counted.
create function days_of(p_tenant integer, p_job uuid, p_days date[], p_most integer)
returns table (day date, runs bigint, failed bigint)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  select d.day, r.many, a.failed from unnest(p_days) u (day)
  cross join lateral (select u.day, start_of(u.day) as start offset 0) d
  cross join lateral (
    select count(*) as many from (
      select 1 from runs r where r.job_id = p_job and r.tenant_id + 0 = p_tenant and r.scheduled_for >= d.start
        and r.scheduled_for < d.start + interval '1 day' limit p_most) r) r
  cross join lateral (
    select count(*) filter (where a.ends_as = 'dead') as failed from (
      select a.ends_as from attempts a where a.job_id = p_job and a.tenant_id + 0 = p_tenant and a.scheduled_for >= d.start
        and a.scheduled_for < d.start + interval '1 day' limit p_most) a) a;
end $$;

-- When the newest of a tenant's runs gave up, p_most of them. It passes the wall between tenants, behind which no index is asked by how
-- a run ended: the comparison might tell of the rows.
create function deaths_of(p_tenant integer, p_since timestamptz, p_most integer) returns setof timestamptz
language plpgsql stable security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
begin
  perform own(p_tenant);
  return query
  select a.finished_at from attempts a
  where a.tenant_id = p_tenant and a.ends_as = 'dead' and a.ends_as <> 'succeeded' and a.finished_at >= p_since
  order by a.finished_at desc limit p_most;
end $$;

-- A tenant's jobs, those that rest or are in trouble, and its dead letters, each counted up to p_most; and all workers.
create function sums_of(p_tenant integer, p_most integer)
returns table (now timestamptz, jobs bigint, paused bigint, failing bigint, late bigint, dead bigint, live bigint, slots bigint, busy bigint)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  select bellringer.now(),
         (select count(*) from (select 1 from jobs j where j.tenant_id = p_tenant and j.deleted_at is null limit p_most) j),
         (select count(*) from (
            select 1 from jobs j where j.tenant_id = p_tenant and j.paused_at is not null and j.deleted_at is null limit p_most) j),
         (select count(*) from (select 1 from troubles k where k.tenant_id = p_tenant and k.kind = 'dead' limit p_most) k),
         (select count(*) from (select 1 from troubles k where k.tenant_id = p_tenant and k.kind in ('late', 'missed') limit p_most) k),
         (select count(*) from (select 1 from dead_letters d where d.tenant_id = p_tenant limit p_most) d), w.live, w.slots, w.busy
  from (select count(*) as live, coalesce(sum(w.busy), 0)::bigint as busy,
               coalesce(sum((select sum(p.slots::bigint) from jsonb_each_text(w.pools) p (pool, slots))), 0)::bigint as slots
        from (select * from workers w where w.state in ('live', 'draining') limit 500) w) w;
end $$;

-- What waits for a tenant in each pool that it may know of, and since when: of each priority the first is looked at.
create function waiting_of(p_tenant integer, p_most integer)
returns table (pool text, paused boolean, workers bigint, slots bigint, ready bigint, busy bigint, since timestamptz)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  with recursive live as materialized (
    select w.worker_id, w.pools from workers w where w.state in ('live', 'draining') limit 500),
  heads (pool_id, priority, at, n) as (
    select p.pool_id, q.priority, q.available_at, 1 from pools p cross join lateral (
      select q.priority, q.available_at from queue q
      where q.pool_id = p.pool_id and q.tenant_id = p_tenant and q.worker_id is null and q.blocked = 0
      order by q.priority desc, q.available_at limit 1) q
    union all
    select h.pool_id, q.priority, q.available_at, h.n + 1 from heads h cross join lateral (
      select q.priority, q.available_at from queue q
      where q.pool_id = h.pool_id and q.tenant_id = p_tenant and q.worker_id is null and q.blocked = 0 and q.priority < h.priority
      order by q.priority desc, q.available_at limit 1) q
    where h.n < 50),
  held as materialized (
    select q.pool_id, count(*) as busy from live l cross join lateral (
      select q.pool_id from queue q where q.worker_id = l.worker_id and q.tenant_id = p_tenant limit p_most) q group by q.pool_id)
  select p.name, p.paused_at is not null, s.workers, s.slots, r.ready, coalesce(g.busy, 0), h.since
  from pools p
  cross join lateral (
    select count(*) as workers, coalesce(sum((l.pools ->> p.name)::bigint), 0)::bigint as slots from live l where l.pools ? p.name) s
  cross join lateral (
    select count(*) as ready from (
      select 1 from queue q where q.pool_id = p.pool_id and q.tenant_id = p_tenant and q.worker_id is null and q.blocked = 0
        and q.available_at <= bellringer.now() limit p_most) r) r
  left join held g on g.pool_id = p.pool_id
  left join lateral (select min(x.at) as since from heads x where x.pool_id = p.pool_id and x.at <= bellringer.now()) h on true
  where p.declared or s.workers > 0 or r.ready > 0 or g.busy > 0
  order by p.name limit 100;
end $$;
