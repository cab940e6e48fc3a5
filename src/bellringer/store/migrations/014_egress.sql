-- Egress: secrets of those who are called, breakers that spare a sick receiver, and who wants to be told of events.
set local search_path to bellringer;

-- Sealed by keys that the database never sees, each bound to its tenant and id. While one is replaced both sign, until
-- the previous one's time is over.
create table secrets (
  tenant_id       integer not null references tenants,
  secret_id       text not null,
  key_id          text not null,
  sealed          bytea not null,
  previous_key_id text,
  previous        bytea,
  previous_until  timestamptz,
  mark            bytea,                        -- by which sends that bring the same secret share a row; keyed, so it tells nothing
  needed_until    timestamptz,                  -- by the latest of those sends; null: it came with a job or an endpoint
  created_at      timestamptz not null,
  changed_at      timestamptz not null,
  primary key (tenant_id, secret_id)
);
create unique index secrets_mark on secrets (tenant_id, mark) where mark is not null;
-- Which jobs name a secret, for when it may go. By its hash: what stands there in the arguments of other tasks may be long.
create index jobs_secret on jobs using hash ((spec #>> '{kwargs,secret,id}')) where spec #>> '{kwargs,secret,id}' is not null;
create index job_revisions_secret on job_revisions using hash ((definition #>> '{spec,kwargs,secret,id}'))
  where definition #>> '{spec,kwargs,secret,id}' is not null;

-- One for each origin that has trouble; none is a closed one. probe_at: of an open one, when a call may try again; of a
-- half-open one, when whoever tries must have come back.
create table breakers (
  tenant_id  integer not null references tenants,
  origin     text not null,
  state      text not null check (state in ('closed', 'open', 'half_open')),
  failures   integer not null,                  -- one after the other
  opens      integer not null default 0,        -- how often it opened without a success in between
  opened_at  timestamptz,
  probe_at   timestamptz,
  reason     text not null,
  changed_at timestamptz not null,
  primary key (tenant_id, origin)
);

-- A call failed. Who knew the breaker as closed counts; who was the probe opens it anew, for twice as long.
create function breaker_failed(p_tenant integer, p_origin text, p_probe timestamptz, p_most integer, p_rest interval,
                               p_longest interval, p_reason text) returns text
language plpgsql set search_path = bellringer, pg_temp as $$
declare
  t timestamptz := bellringer.now();
  s text;
begin
  if p_probe is not null then
    update breakers set state = 'open', opens = opens + 1, failures = failures + 1, reason = p_reason, changed_at = t,
           probe_at = t + least(p_rest * power(2, least(opens, 20)), p_longest)
    where tenant_id = p_tenant and origin = p_origin and state = 'half_open' and probe_at = p_probe returning state into s;
    return s;
  end if;
  insert into breakers (tenant_id, origin, state, failures, reason, changed_at)
  values (p_tenant, p_origin, 'closed', 1, p_reason, t)
  on conflict (tenant_id, origin) do update
  set failures = breakers.failures + 1, reason = p_reason, changed_at = t
  where breakers.state = 'closed';
  update breakers set state = 'open', opens = 1, opened_at = t, probe_at = t + p_rest, changed_at = t
  where tenant_id = p_tenant and origin = p_origin and state = 'closed' and failures >= p_most returning state into s;
  return s;
end $$;

-- Who wants to be told of events, and how far each has been told. See events for the order.
create table webhook_endpoints (
  endpoint_id     bigint generated always as identity primary key,
  tenant_id       integer not null references tenants,
  url             text not null,
  kinds           text[] not null default '{}', -- none: all
  description     text not null default '',
  secret_id       text not null,
  enabled         boolean not null default true,
  disabled_reason text,
  told_tx         xid8 not null default pg_current_xact_id(),
  told_event      bigint not null default 9223372036854775807,
  created_at      timestamptz not null,
  created_by      text not null,
  changed_at      timestamptz not null
);
create index webhook_endpoints_of_tenant on webhook_endpoints (tenant_id, endpoint_id);

-- What was sent to whom: the run that carries it. A replay carries the same event again.
create table deliveries (
  delivery_id   bigint generated always as identity primary key,
  tenant_id     integer not null,
  endpoint_id   bigint not null references webhook_endpoints on delete cascade,
  event_id      bigint,                         -- null: a test
  kind          text not null,
  job_id        uuid not null,
  scheduled_for timestamptz not null,
  slot          bigint not null,
  made_at       timestamptz not null,
  replay_of     bigint
);
create unique index deliveries_once on deliveries (endpoint_id, event_id) where replay_of is null and event_id is not null;
create index deliveries_newest on deliveries (endpoint_id, delivery_id);
create index deliveries_old on deliveries (made_at);

-- Jobs in trouble: what is known to be late, missed or dead, until a later run succeeds. Healthy jobs have no row.
create table troubles (
  job_id        uuid primary key,
  tenant_id     integer not null,
  kind          text not null,
  scheduled_for timestamptz not null,
  since         timestamptz not null,           -- of the latest trouble: only what ends well after it counts
  looked_at     timestamptz not null
);
create index troubles_looked on troubles (looked_at);

-- How far the events have been read for troubles.
create table troubles_read (
  only_row boolean primary key default true check (only_row),
  tx       xid8 not null default pg_current_xact_id(),
  event_id bigint not null default 9223372036854775807
);
insert into troubles_read default values;
create index events_of_trouble on events (tx, event_id) where kind in ('dead', 'late', 'missed');

-- Note new troubles of jobs, and tell which jobs have recovered. Only rows of jobs in trouble are looked at, those first
-- that were not looked at for longest.
create function recover(p_most integer, out looked integer, out noted integer, out recovered integer)
language plpgsql set search_path = bellringer, pg_temp
set enable_hashjoin = off set enable_mergejoin = off set enable_seqscan = off as $$
declare
  t timestamptz := bellringer.now();
  r troubles_read;
begin
  select * into r from troubles_read for update;
  with fresh as materialized (
    select e.tx, e.event_id, e.job_id, e.tenant_id, e.kind, e.scheduled_for, e.at from events e
    where (e.tx, e.event_id) > (r.tx, r.event_id) and e.tx < pg_snapshot_xmin(pg_current_snapshot())
      and e.kind in ('dead', 'late', 'missed')
    order by e.tx, e.event_id limit p_most),
  latest as (
    select distinct on (f.job_id) f.* from fresh f join jobs j on j.job_id = f.job_id and j.deleted_at is null
    order by f.job_id, f.tx desc, f.event_id desc),
  kept as (
    insert into troubles (job_id, tenant_id, kind, scheduled_for, since, looked_at)
    select job_id, tenant_id, kind, scheduled_for, at, '-infinity' from latest
    on conflict (job_id) do update set kind = excluded.kind, scheduled_for = excluded.scheduled_for, since = excluded.since
    returning 1),
  moved as (
    update troubles_read set tx = f.tx, event_id = f.event_id
    from (select tx, event_id from fresh order by tx desc, event_id desc limit 1) f)
  select (select count(*) from fresh), count(*) from kept into looked, noted;

  with picks as materialized (
    select k.job_id, k.tenant_id, k.kind, k.scheduled_for, k.since from troubles k order by k.looked_at limit p_most for update),
  well as materialized (
    select p.job_id, p.tenant_id, p.kind, p.since, a.scheduled_for, a.slot, a.attempt, a.finished_at
    from picks p cross join lateral (
      select a.scheduled_for, a.slot, a.attempt, a.finished_at from attempts a
      where a.job_id = p.job_id and a.scheduled_for >= p.scheduled_for and a.ends_as = 'succeeded'
        and a.finished_at >= p.since
      order by a.scheduled_for desc, a.slot desc limit 1) a),
  told as (
    insert into events (at, tenant_id, kind, job_id, scheduled_for, slot, attempt, data)
    select t, tenant_id, 'recovered', job_id, scheduled_for, slot, attempt, jsonb_build_object('after', kind, 'since', since)
    from well order by job_id on conflict do nothing returning 1),
  gone as (
    delete from troubles k where k.job_id in (select job_id from well)
      or (k.job_id in (select job_id from picks) and not exists (select 1 from jobs j where j.job_id = k.job_id and j.deleted_at is null))),
  looked as (
    update troubles k set looked_at = t where k.job_id in (select job_id from picks) and k.job_id not in (select job_id from well)
      and exists (select 1 from jobs j where j.job_id = k.job_id and j.deleted_at is null))
  select count(*) from told into recovered;
end $$;
