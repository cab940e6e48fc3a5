-- compatible from 007
-- Working hours of calendars, such as {"MON-FRI 09:00-17:30"}; empty: every hour of a working day.
set local search_path to bellringer;

alter table days_off add column hours text[] not null default '{}';
