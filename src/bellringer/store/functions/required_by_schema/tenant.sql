-- The tenant that this connection serves; null if it serves no tenant or all tenants.
create or replace function current_tenant() returns integer language sql stable parallel safe as
$$ select nullif(current_setting('bellringer.tenant', true), '')::integer $$;

-- Raises BR004 if the connection serves another tenant. Each `security definer` function calls it, because those bypass
-- row-level security.
create or replace function assert_tenant(p_tenant integer) returns boolean language plpgsql stable parallel safe as $$
begin
  if p_tenant is distinct from coalesce(bellringer.current_tenant(), p_tenant) then
    raise exception 'that is another tenant''s' using errcode = 'BR004';
  end if;
  return true;
end $$;
