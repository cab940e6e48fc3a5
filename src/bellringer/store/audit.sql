-- The audit: what was changed, by whom. What a job was is in its revisions, what it is in itself.

-- name: newest
-- Those of the next $3 entries before $2 that fit, and the last that was looked at. A target becomes a job's id apart: behind
-- row-level security an index is asked only by what cannot tell of the rows, and a cast might.
with seen as materialized (
  select * from audit where tenant_id = $1 and audit_id < $2 order by audit_id desc limit $3),
kept as materialized (
  select *, case kind when 'job' then target::uuid end as job_id from seen
  where ($5::text is null or who = $5) and ($6::text is null or action = $6) and ($7::text is null or kind = $7)
    and ($8::text is null or target = $8) and ($9::timestamptz is null or at >= $9) and ($10::timestamptz is null or at < $10)
  order by audit_id desc limit $4)
select k.audit_id, k.at, k.who, k.origin, k.request_id, k.action, k.kind, k.target, k.revision, j.name,
       coalesce(k.before, b.definition) as before, coalesce(k.after, c.definition, case j.revision when k.revision then definition_of(j) end) as after, s.stop, s.scanned
from (select min(audit_id) as stop, count(*) as scanned from seen) s left join kept k on true
left join jobs j on j.job_id = k.job_id
left join job_revisions b on b.job_id = k.job_id and b.revision = k.revision - 1
left join job_revisions c on c.job_id = k.job_id and c.revision = k.revision
order by k.audit_id desc

-- name: after
-- The same, oldest first, of those after $2.
with seen as materialized (
  select * from audit where tenant_id = $1 and audit_id > $2 order by audit_id limit $3),
kept as materialized (
  select *, case kind when 'job' then target::uuid end as job_id from seen
  where ($5::text is null or who = $5) and ($6::text is null or action = $6) and ($7::text is null or kind = $7)
    and ($8::text is null or target = $8) and ($9::timestamptz is null or at >= $9) and ($10::timestamptz is null or at < $10)
  order by audit_id limit $4)
select k.audit_id, k.at, k.who, k.origin, k.request_id, k.action, k.kind, k.target, k.revision, j.name,
       coalesce(k.before, b.definition) as before, coalesce(k.after, c.definition, case j.revision when k.revision then definition_of(j) end) as after, s.stop, s.scanned
from (select max(audit_id) as stop, count(*) as scanned from seen) s left join kept k on true
left join jobs j on j.job_id = k.job_id
left join job_revisions b on b.job_id = k.job_id and b.revision = k.revision - 1
left join job_revisions c on c.job_id = k.job_id and c.revision = k.revision
order by k.audit_id

-- name: lock
select pg_try_advisory_xact_lock(82, 0)

-- name: unsealed
-- The next entries in the order in which they are sealed, with what jobs were. Only of transactions that have ended: every
-- number below the snapshot's xmin is of such a one, and new ones get greater numbers. So what is below it is complete, and no
-- entry can slip in behind a seal later. By audit_id alone one could: numbers are given before the commit.
select a.audit_id, a.tx::text::bigint as tx, a.at, a.tenant_id, a.who, a.origin, a.request_id, a.action, a.kind, a.target, a.revision,
       coalesce(a.before::text, sealed_as(b.definition)) as before,
       coalesce(a.after::text, sealed_as(c.definition), case j.revision when a.revision then sealed_as(j) end) as after
from (select *, case kind when 'job' then target::uuid end as job_id from audit
      where (tx, audit_id) > ($1::bigint::text::xid8, $2) and tx < pg_snapshot_xmin(pg_current_snapshot())
      order by tx, audit_id limit $3) a
left join job_revisions b on b.job_id = a.job_id and b.revision = a.revision - 1
left join job_revisions c on c.job_id = a.job_id and c.revision = a.revision
left join jobs j on j.job_id = a.job_id
order by a.tx, a.audit_id

-- name: sealed
-- The same, up to a seal.
select a.audit_id, a.tx::text::bigint as tx, a.at, a.tenant_id, a.who, a.origin, a.request_id, a.action, a.kind, a.target, a.revision,
       coalesce(a.before::text, sealed_as(b.definition)) as before,
       coalesce(a.after::text, sealed_as(c.definition), case j.revision when a.revision then sealed_as(j) end) as after
from (select *, case kind when 'job' then target::uuid end as job_id from audit
      where (tx, audit_id) > ($1::bigint::text::xid8, $2) and (tx, audit_id) <= ($3::bigint::text::xid8, $4)
      order by tx, audit_id limit $5) a
left join job_revisions b on b.job_id = a.job_id and b.revision = a.revision - 1
left join job_revisions c on c.job_id = a.job_id and c.revision = a.revision
left join jobs j on j.job_id = a.job_id
order by a.tx, a.audit_id

-- name: last
select seal_id, last_tx::text::bigint as last_tx, last_id, count, prev_hash, hash, sealed_at from audit_seals order by seal_id desc limit 1

-- name: seals
select seal_id, last_tx::text::bigint as last_tx, last_id, count, prev_hash, hash, sealed_at from audit_seals
where seal_id > $1 order by seal_id limit $2

-- name: newest_seals
select seal_id, last_tx::text::bigint as last_tx, last_id, count, prev_hash, hash, sealed_at from audit_seals
where seal_id < $1 order by seal_id desc limit $2

-- name: add
insert into audit_seals (last_tx, last_id, count, prev_hash, hash, sealed_at)
values ($1::bigint::text::xid8, $2, $3, $4, $5, bellringer.now())

-- name: unsealed_count
select count(*) from (
  select 1 from audit where (tx, audit_id) > ($1::bigint::text::xid8, $2) limit 100000) u

-- name: forget
select bellringer.forget_audit($1, 100)
