-- What the console reads: marks of change, the newest runs of jobs, and how the last attempts went. Everything stops at a limit, by an
-- index that gives the order; the plans are pinned, because days that have just begun have no statistics.
set local search_path to bellringer;

create index troubles_of_tenant on troubles (tenant_id, kind, since);
create index troubles_by_job on troubles (tenant_id, kind, job_id);
create index jobs_resting on jobs (tenant_id, job_id) where paused_at is not null and deleted_at is null;
create index jobs_resting_by_name on jobs (tenant_id, name_key) where paused_at is not null and deleted_at is null;
create index jobs_disabled on jobs (tenant_id, job_id) where not enabled and deleted_at is null;
create index jobs_disabled_by_name on jobs (tenant_id, name_key) where not enabled and deleted_at is null;

-- Where lists of jobs come from: the next p_most jobs of a state, in the order of the list, by an index that holds no others. These
-- three have no settings and are not plpgsql, so that they become parts of the statement that asks: it knows the state when it is
-- planned, and of the branches one is left. A job that was deleted may still be in trouble; it counts as looked at.
create function in_trouble(p_tenant integer, p_state text, p_after uuid, p_most bigint) returns table (job_id uuid) language sql stable as $$
  (select k.job_id from bellringer.troubles k
   where p_state = 'failing' and k.tenant_id = p_tenant and k.kind = 'dead' and (p_after is null or k.job_id > p_after) order by k.job_id)
  union all
  (select k.job_id from bellringer.troubles k
   where p_state = 'late' and k.tenant_id = p_tenant and k.kind = 'late' and (p_after is null or k.job_id > p_after) order by k.job_id)
  union all
  (select k.job_id from bellringer.troubles k
   where p_state = 'late' and k.tenant_id = p_tenant and k.kind = 'missed' and (p_after is null or k.job_id > p_after) order by k.job_id)
  order by job_id limit p_most
$$;

create function jobs_by_id(p_tenant integer, p_state text, p_after uuid, p_most bigint) returns setof jobs language sql stable as $$
  (select * from bellringer.jobs j
   where (p_state is null or p_state = 'enabled')
     and j.tenant_id = p_tenant and j.deleted_at is null and (p_after is null or j.job_id > p_after) order by j.job_id limit p_most)
  union all
  (select * from bellringer.jobs j
   where p_state = 'paused' and j.paused_at is not null
     and j.tenant_id = p_tenant and j.deleted_at is null and (p_after is null or j.job_id > p_after) order by j.job_id limit p_most)
  union all
  (select * from bellringer.jobs j
   where p_state = 'disabled' and not j.enabled
     and j.tenant_id = p_tenant and j.deleted_at is null and (p_after is null or j.job_id > p_after) order by j.job_id limit p_most)
  union all
  (select j.* from bellringer.in_trouble(p_tenant, p_state, p_after, p_most) k
   join lateral (select * from bellringer.jobs j where j.job_id = k.job_id offset 0) j on j.job_id = k.job_id
   where p_state in ('late', 'failing') and j.tenant_id = p_tenant order by j.job_id limit p_most)
$$;

-- By their names those in trouble are sorted, where they are few. Where they are many, all jobs are walked by name: one in trouble is
-- never far then.
create function jobs_by_name(p_tenant integer, p_state text, p_after text, p_most bigint) returns setof jobs language sql stable as $$
  (select * from bellringer.jobs j
   where (p_state is null or p_state = 'enabled' or (p_state in ('late', 'failing')
            and (select count(*) from bellringer.in_trouble(p_tenant, p_state, null, p_most / 4 + 1)) > p_most / 4))
     and j.tenant_id = p_tenant and j.deleted_at is null and (p_after is null or j.name_key > p_after) order by j.name_key limit p_most)
  union all
  (select * from bellringer.jobs j
   where p_state = 'paused' and j.paused_at is not null
     and j.tenant_id = p_tenant and j.deleted_at is null and (p_after is null or j.name_key > p_after) order by j.name_key limit p_most)
  union all
  (select * from bellringer.jobs j
   where p_state = 'disabled' and not j.enabled
     and j.tenant_id = p_tenant and j.deleted_at is null and (p_after is null or j.name_key > p_after) order by j.name_key limit p_most)
  union all
  (select j.* from bellringer.in_trouble(p_tenant, p_state, null, p_most / 4) k
   cross join lateral (select * from bellringer.jobs j where j.job_id = k.job_id offset 0) j
   where p_state in ('late', 'failing')
     and (select count(*) from bellringer.in_trouble(p_tenant, p_state, null, p_most / 4 + 1)) <= p_most / 4
     and j.tenant_id = p_tenant and j.deleted_at is null and (p_after is null or j.name_key > p_after) order by j.name_key limit p_most)
$$;

-- The next p_most jobs that a filter lets through, among the next p_scan of its state by their ids or names. Where those are fewer, a
-- last row says where it came to, if that was not the end.
create function list_jobs(p_tenant integer, p_by_name boolean, b_job uuid, b_name text, p_q text, p_tag text, p_state text, p_pool text,
                          p_task text, p_owner text, p_like text, p_most integer, p_scan integer)
returns table (job_id uuid, name_key text, is_stop boolean)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
  f_task integer := task_named(p_task);
  f_pool smallint := pool_named(p_pool);
  n      bigint;
begin
  if p_by_name then
    return query
    select s.job_id, s.name_key, false from jobs_by_name(p_tenant, p_state, b_name, p_scan) s
    where (p_q is null or strpos(s.name_key, p_q) > 0) and (p_tag is null or s.tags @> array[p_tag])
      and (p_state is null or p_state in ('late', 'failing')
           or p_state = case when s.paused_at is not null then 'paused' when s.enabled then 'enabled' else 'disabled' end)
      and (p_state is null or p_state not in ('late', 'failing') or exists (   -- the walk meets others
             select 1 from troubles k where k.job_id = s.job_id and (k.kind = 'dead') = (p_state = 'failing') offset 0))
      and (p_pool is null or s.pool_id = f_pool) and (p_task is null or s.task_id = f_task) and (p_owner is null or s.owner = p_owner)
      and (p_like is null or s.name_key like p_like)
    order by s.name_key limit p_most;
  else
    return query
    select s.job_id, s.name_key, false from jobs_by_id(p_tenant, p_state, b_job, p_scan) s
    where (p_q is null or strpos(s.name_key, p_q) > 0) and (p_tag is null or s.tags @> array[p_tag]) and s.deleted_at is null
      and (p_state is null or p_state in ('late', 'failing')
           or p_state = case when s.paused_at is not null then 'paused' when s.enabled then 'enabled' else 'disabled' end)
      and (p_pool is null or s.pool_id = f_pool) and (p_task is null or s.task_id = f_task) and (p_owner is null or s.owner = p_owner)
      and (p_like is null or s.name_key like p_like)
    order by s.job_id limit p_most;
  end if;
  get diagnostics n = row_count;
  if n < p_most and p_by_name then
    return query
    select j.job_id, j.name_key, true
    from (select s.name_key from jobs_by_name(p_tenant, p_state, b_name, p_scan) s order by s.name_key offset p_scan - 1 limit 1) s
    join jobs j on j.tenant_id = p_tenant and j.name_key = s.name_key and j.deleted_at is null;
  elsif n < p_most then
    return query
    select j.job_id, j.name_key, true
    from (select s.job_id from jobs_by_id(p_tenant, p_state, b_job, p_scan) s order by s.job_id offset p_scan - 1 limit 1) s
    join jobs j on j.job_id = s.job_id;
  end if;
end $$;

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
  select t.tenant_id, mark(concat_ws(' ', born.at, born.many, ready.marks, held.many, held.since, held.progress, opened.many, opened.far, used.started,
                                used.busy, ended.at)),
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
  left join lateral (                                    -- a workflow run may go on, and end, without a worker
    select count(*) as many, sum(hashtext(concat(f.busy, ' ', f.unfinished))) as far from (
      select flow_of(q.job_id, q.scheduled_for, q.slot) as flow_id from queue q
      where q.tenant_id = t.tenant_id and q.blocked & 128 = 128 order by q.job_id limit 200) o
    cross join lateral (select f.busy, f.unfinished from flows f where f.flow_id = o.flow_id offset 0) f) opened on true
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

-- The attempts of a tenant's newest runs between two instants: one row for each, and one for a run that has none. That theirs
-- are the same instants leaves only the days that are meant.
create function tries_of(p_tenant integer, p_from timestamptz, p_to timestamptz, p_most integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, task text, jitter_by interval, attempt integer, outcome text, ends_as text,
               started_at timestamptz, finished_at timestamptz, is_node boolean)
language plpgsql stable set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
begin
  return query
  select r.job_id, r.scheduled_for, r.slot, t.name, case when r.cause = 'schedule' then j.jitter_by end, a.attempt, a.outcome::text,
         a.ends_as::text, a.started_at, a.finished_at, r.cause = 'workflow'
  from (
    select r.job_id, r.scheduled_for, r.slot, r.task_id, r.cause from runs r
    where r.tenant_id = p_tenant and r.scheduled_for >= p_from and r.scheduled_for < p_to
    order by r.scheduled_for desc, r.shard desc limit p_most) r
  join tasks t on t.task_id = r.task_id
  left join lateral (select j.jitter_by from jobs j where j.job_id = r.job_id offset 0) j on true
  left join lateral (
    select * from attempts a
    where a.job_id = r.job_id and a.scheduled_for = r.scheduled_for and a.slot = r.slot
      and a.scheduled_for >= p_from and a.scheduled_for < p_to limit 10) a on true;
end $$;

create index attempts_dead on attempts (job_id, scheduled_for) where ends_as = 'dead';

-- How many of a job's runs, and of them how many gave up, were scheduled for each of these days; p_most of a day are counted. Whose
-- job it is is asked once, and not of each run: so the indexes alone are read.
create function days_of(p_tenant integer, p_job uuid, p_days date[], p_most integer)
returns table (day date, runs bigint, failed bigint)
language plpgsql stable security definer set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  perform own(p_tenant);
  return query
  select d.day, r.many, a.failed
  from (select j.job_id from jobs j where j.job_id = p_job and j.tenant_id + 0 = p_tenant offset 0) j cross join unnest(p_days) u (day)
  cross join lateral (select u.day, start_of(u.day) as start offset 0) d
  cross join lateral (
    select count(*) as many from (
      select 1 from runs r
      where r.job_id = p_job and r.scheduled_for >= d.start and r.scheduled_for < d.start + interval '1 day' limit p_most) r) r
  cross join lateral (
    select count(*) as failed from (
      select 1 from attempts a
      where a.job_id = p_job and a.ends_as = 'dead' and a.scheduled_for >= d.start and a.scheduled_for < d.start + interval '1 day'
      limit p_most) a) a;
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
