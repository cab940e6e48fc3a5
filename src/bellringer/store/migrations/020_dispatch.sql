-- Dispatch by a broker. The queue row is the outbox: sending marks it (claim() without a worker), and the message only says who may
-- take it. A message that comes twice, late or not at all changes nothing but the time: it names the attempt that it was sent for,
-- the first to take the run has it, and what nobody has taken is sent again.
set local search_path to bellringer;

-- A worker takes the runs of the messages that it got, all in one statement: those that are still out. The answer has the job's
-- revision of now: who was sent an older one reads the run anew.
create function take(p_worker integer, p_pool smallint, m_job uuid[], m_at timestamptz[], m_slot bigint[], m_attempt integer[])
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, claimed_at timestamptz, revision integer)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  if exists (select 1 from pools p where p.pool_id = p_pool and p.paused_at is not null) then return; end if;
  return query
  with mine as materialized (
    select q.ctid as tid
    from unnest(m_job, m_at, m_slot, m_attempt) m (job_id, at, slot, attempt)
    join queue q on q.job_id = m.job_id and q.scheduled_for = m.at and q.slot = m.slot
    where q.worker_id is null and q.blocked & ~32 = 64 and q.attempt = m.attempt and q.pool_id + 0 = p_pool
      and not exists (select 1 from tenants t where t.tenant_id = q.tenant_id and t.suspended_at is not null)
    order by q.job_id, q.scheduled_for, q.slot for update of q),
  taken as (
    update queue q set worker_id = p_worker, attempt = q.attempt + 1, claimed_at = bellringer.now(), blocked = q.blocked & ~64,
           sent_at = null
    where q.ctid = any (array(select tid from mine))
    returning q.job_id, q.scheduled_for, q.slot, q.attempt, q.claimed_at)
  select t.job_id, t.scheduled_for, t.slot, t.attempt, t.claimed_at, j.revision
  from taken t left join jobs j on j.job_id = t.job_id;
end $$;

-- Runs that were sent and that nobody has taken for so long: to be sent again, oldest first. What is out of a pool is bounded, so
-- all of it may be looked at. Where nothing can take them (the pool rests, its tenant is suspended, nobody consumes) they come home.
create function resend(p_pool smallint, p_after interval, p_limit integer)
returns table (job_id uuid, scheduled_for timestamptz, slot bigint, attempt integer, attempt_floor integer, task_id integer,
               tenant_id integer, claimed_at timestamptz, name text, spec jsonb, behind boolean, available_at timestamptz, revision integer)
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  return query
  with old as materialized (
    select q.ctid as tid from queue q
    where q.pool_id = p_pool and q.worker_id is null and q.blocked & 64 = 64 and q.sent_at < clock_timestamp() - p_after
      and not exists (select 1 from tenants t where t.tenant_id = q.tenant_id and t.suspended_at is not null)
    order by q.sent_at limit p_limit for update of q skip locked),
  again as (
    update queue q set sent_at = clock_timestamp() where q.ctid = any (array(select tid from old)) returning q.*)
  select a.job_id, a.scheduled_for, a.slot, a.attempt, a.attempt_floor, a.task_id, a.tenant_id, a.claimed_at,
         j.name, coalesce(a.spec, j.spec), a.priority < 0, a.available_at, j.revision
  from again a left join jobs j on j.job_id = a.job_id;
end $$;

-- Sent runs come home: they are as if they had never been sent. Without keys, all of the pool that were sent so long ago.
create function unsend(p_pool smallint, p_after interval, m_job uuid[], m_at timestamptz[], m_slot bigint[]) returns integer
language plpgsql set search_path = bellringer, pg_temp set lock_timeout = '2s'
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare n integer;
begin
  with home as materialized (
    select q.ctid as tid from queue q
    where m_job is null and q.pool_id = p_pool and q.worker_id is null and q.blocked & 64 = 64
      and q.sent_at < clock_timestamp() - p_after
    for update skip locked),
  named as materialized (
    select q.ctid as tid
    from unnest(m_job, m_at, m_slot) m (job_id, at, slot)
    join queue q on q.job_id = m.job_id and q.scheduled_for = m.at and q.slot = m.slot
    where q.worker_id is null and q.blocked & 64 = 64
    order by q.job_id, q.scheduled_for, q.slot for update of q skip locked)
  update queue q set blocked = q.blocked & ~64, sent_at = null
  where q.ctid = any (array(select tid from home union all select tid from named));
  get diagnostics n = row_count;
  return n;
end $$;

-- What a scheduler waits for, in words: of all of them, the first that waits.
create function waited_for() returns text language sql stable security definer set search_path = bellringer, pg_temp as $$
  select waits_for from nodes where waits_for is not null and seen_at > clock_timestamp() - interval '30 s' order by seen_at desc limit 1
$$;

-- What a broker's consumers have sent back because nobody could read it. It blocks nothing, and is kept to be looked at.
create table quarantine (
  topic     text not null,
  part      integer not null,
  place     bigint not null,                    -- the message's offset
  at        timestamptz not null default clock_timestamp(),
  problem   text not null,
  message   bytea not null,                     -- its first 4 KiB
  primary key (topic, part, place)
);
