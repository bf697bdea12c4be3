-- A journal of version 1, as sqlite3's .dump gives it. Never changed: every later coordinator reads it.
-- One job trains (a directive, a checkpoint and an evaluation behind it), two were cancelled.
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES('coordinator_id','81ea6c45ef89a93f');
INSERT INTO meta VALUES('created_by','');
INSERT INTO meta VALUES('version','1');
CREATE TABLE state(key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL)
    STRICT, WITHOUT ROWID;
INSERT INTO state VALUES('agent/696e6361726e6174696f6e2d6f6e65','{"node":"n1","address":"10.0.0.1","num_cpus":1,"workers":[{"name":"n1/0","device":"cpu","kind":"cpu"},{"name":"n1/1","device":"cpu","kind":"cpu","index":1}],"stretch":1}',3113170160);
INSERT INTO state VALUES('agent/696e6361726e6174696f6e2d6f6e65/reports','{"through":13}',3263164242);
INSERT INTO state VALUES('agent/696e6361726e6174696f6e2d74776f','{"node":"n2","address":"10.0.0.2","num_cpus":1,"workers":[{"name":"n2/0","device":"cpu","kind":"cpu"}],"stretch":1}',2776055829);
INSERT INTO state VALUES('agent/696e6361726e6174696f6e2d74776f/reports','{"through":6}',3912341561);
INSERT INTO state VALUES('coordinator','{"durable_version":1,"next_sequence":4}',3749850644);
INSERT INTO state VALUES('job/1','{"job_id":"job-1","spec_json":"{\"name\": \"test\",\n          \"model\": {\"num_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4, \"seq_length\": 32,\n                    \"vocab_size\": 300},\n          \"parallel\": {\"distributed_backend\": \"gloo\"},\n          \"data\": {\"dataset_provider\": \"mock\"},\n          \"optimizer\": {\"lr\": 0.001},\n          \"training\": {\"micro_batch_size\": 1, \"train_iters\": 10},\"checkpoint\": {\"save\": \"/c\", \"save_interval\": 5}, \"resources\": {\"world_size\": 2, \"spares\": 0, \"priority\": 0}}","idempotency_key":"a","train_iters":10,"submitted_at":1700000000100000000}',2628028641);
INSERT INTO state VALUES('job/1/directive/1','{"kind":"checkpoint","reason":"save it"}',710120117);
INSERT INTO state VALUES('job/1/epoch','{"unique_id":"abcd"}',52371647);
INSERT INTO state VALUES('job/1/key/67726f75702f30','{"epoch":1,"value":"YWRkcmVzcw=="}',719527954);
INSERT INTO state VALUES('job/1/rank/0','{"worker":"n1/0","incarnation":"aW5jYXJuYXRpb24tb25l","node":"n1","host_address":"10.0.0.1","device":"cpu","num_threads":1,"trainer":"launched","phase":"done","done":{"epoch":1,"reason":"trained 5 iterations"}}',1151757758);
INSERT INTO state VALUES('job/1/rank/1','{"worker":"n1/1","incarnation":"aW5jYXJuYXRpb24tb25l","node":"n1","host_address":"10.0.0.1","device":"cpu","num_threads":1,"trainer":"launched","phase":"training"}',946661838);
INSERT INTO state VALUES('job/1/state','{"state":"RUNNING","version":18,"epoch":1,"iteration":5,"consumed_samples":10,"started_at":1700000000100000000,"directives_applied":1,"phase_samples":[0,3,0,3,0,0,0,1,0,0,0,1]}',3103031492);
INSERT INTO state VALUES('job/2','{"job_id":"job-2","spec_json":"{\"name\": \"test\",\n          \"model\": {\"num_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4, \"seq_length\": 32,\n                    \"vocab_size\": 300},\n          \"parallel\": {\"distributed_backend\": \"gloo\"},\n          \"data\": {\"dataset_provider\": \"mock\"},\n          \"optimizer\": {\"lr\": 0.001},\n          \"training\": {\"micro_batch_size\": 1, \"train_iters\": 10},\"checkpoint\": {\"save\": \"/c\", \"save_interval\": 5}, \"resources\": {\"world_size\": 3, \"spares\": 0, \"priority\": 0}}","idempotency_key":"b","train_iters":10,"submitted_at":1700000000100000000}',2485178266);
INSERT INTO state VALUES('job/2/state','{"state":"CANCELLED","reason":"cancelled: not wanted","version":5,"exit_code":130,"ended_at":1700000000200000000,"cancel":"stop","cancel_reason":"cancelled: not wanted"}',2653560947);
INSERT INTO state VALUES('job/3','{"job_id":"job-3","spec_json":"{\"name\": \"test\",\n          \"model\": {\"num_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4, \"seq_length\": 32,\n                    \"vocab_size\": 300},\n          \"parallel\": {\"distributed_backend\": \"gloo\"},\n          \"data\": {\"dataset_provider\": \"mock\"},\n          \"optimizer\": {\"lr\": 0.001},\n          \"training\": {\"micro_batch_size\": 1, \"train_iters\": 10},\"checkpoint\": {\"save\": \"/c\", \"save_interval\": 5}, \"resources\": {\"world_size\": 1, \"spares\": 0, \"priority\": 0}}","idempotency_key":"c","train_iters":10,"submitted_at":1700000000200000000}',2292571728);
INSERT INTO state VALUES('job/3/directive/1','{"kind":"stop","reason":"cancelled: enough"}',423345128);
INSERT INTO state VALUES('job/3/epoch','{"unique_id":"abcd","aborted":true}',598917974);
INSERT INTO state VALUES('job/3/rank/0','{"worker":"n2/0","incarnation":"aW5jYXJuYXRpb24tdHdv","node":"n2","host_address":"10.0.0.2","device":"cpu","num_threads":1,"trainer":"exited","phase":"exited","done":{"epoch":1,"reason":"stopped"}}',2898012917);
INSERT INTO state VALUES('job/3/state','{"state":"CANCELLED","reason":"cancelled: enough","version":14,"epoch":1,"iteration":1,"consumed_samples":2,"exit_code":130,"started_at":1700000000200000000,"ended_at":1700000000200000000,"cancel":"stop","cancel_reason":"cancelled: enough","phase_samples":[0,2,0,2,0,0,0,2,0,0,0,0]}',3128959984);
CREATE TABLE ledger(job INTEGER NOT NULL, kind INTEGER NOT NULL, idx INTEGER NOT NULL,
                      value TEXT NOT NULL, crc INTEGER NOT NULL,
                      PRIMARY KEY (job, kind, idx)) STRICT, WITHOUT ROWID;
INSERT INTO ledger VALUES(1,1,1,'{"epoch":1,"time":1700000000100000000,"iteration":1,"consumed_samples":2,"lm_loss":1,"loss_scale":1}',2807028106);
INSERT INTO ledger VALUES(1,1,2,'{"epoch":1,"time":1700000000100000000,"iteration":2,"consumed_samples":4,"lm_loss":0.5,"loss_scale":1}',2460855352);
INSERT INTO ledger VALUES(1,1,3,'{"epoch":1,"time":1700000000100000000,"iteration":3,"consumed_samples":6,"lm_loss":0.3333333333333333,"loss_scale":1}',609199849);
INSERT INTO ledger VALUES(1,1,4,'{"epoch":1,"time":1700000000100000000,"iteration":4,"consumed_samples":8,"lm_loss":0.25,"loss_scale":1,"applied_directive":1}',4218326461);
INSERT INTO ledger VALUES(1,1,5,'{"epoch":1,"time":1700000000200000000,"iteration":5,"consumed_samples":10,"lm_loss":0.2,"loss_scale":1,"applied_directive":1}',3947251703);
INSERT INTO ledger VALUES(1,2,1,'{"epoch":1,"iteration":5,"split":"valid","lm_loss":1.5,"ppl":4.5}',1703029185);
INSERT INTO ledger VALUES(1,3,1,'{"epoch":1,"iteration":4,"path":"/c/4","ok":true}',4187686796);
INSERT INTO ledger VALUES(1,4,1,'{"time":1700000000100000000,"kind":"submitted","text":"job \"test\" with 2 ranks","rank":-1}',82574827);
INSERT INTO ledger VALUES(1,4,2,'{"time":1700000000100000000,"kind":"queued","rank":-1}',3287752706);
INSERT INTO ledger VALUES(1,4,3,'{"time":1700000000100000000,"epoch":1,"kind":"forming","text":"epoch 1","rank":-1}',48646570);
INSERT INTO ledger VALUES(1,4,4,'{"time":1700000000100000000,"epoch":1,"kind":"running","text":"epoch 1","rank":-1}',3928750245);
INSERT INTO ledger VALUES(1,4,5,'{"time":1700000000100000000,"epoch":1,"kind":"directive","text":"1: checkpoint, save it","rank":-1}',1432860534);
INSERT INTO ledger VALUES(1,4,6,'{"time":1700000000100000000,"epoch":1,"kind":"checkpoint","text":"iteration 4 saved to /c/4","rank":0,"worker":"n1/0"}',3424592169);
INSERT INTO ledger VALUES(1,4,7,'{"time":1700000000200000000,"epoch":1,"kind":"evaluated","text":"valid loss 1.5 at iteration 5","rank":0,"worker":"n1/0"}',4031136002);
INSERT INTO ledger VALUES(2,4,1,'{"time":1700000000100000000,"kind":"submitted","text":"job \"test\" with 3 ranks","rank":-1}',2526534705);
INSERT INTO ledger VALUES(2,4,2,'{"time":1700000000100000000,"kind":"queued","rank":-1}',1564200175);
INSERT INTO ledger VALUES(2,4,3,'{"time":1700000000200000000,"kind":"cancel_requested","text":"cancelled: not wanted","rank":-1}',165224877);
INSERT INTO ledger VALUES(2,4,4,'{"time":1700000000200000000,"kind":"cancelled","text":"cancelled: not wanted","rank":-1}',2240538100);
INSERT INTO ledger VALUES(3,1,1,'{"epoch":1,"time":1700000000200000000,"iteration":1,"consumed_samples":2,"lm_loss":1,"loss_scale":1}',1086986215);
INSERT INTO ledger VALUES(3,4,1,'{"time":1700000000200000000,"kind":"submitted","text":"job \"test\" with 1 ranks","rank":-1}',38923858);
INSERT INTO ledger VALUES(3,4,2,'{"time":1700000000200000000,"kind":"queued","rank":-1}',2094376048);
INSERT INTO ledger VALUES(3,4,3,'{"time":1700000000200000000,"epoch":1,"kind":"forming","text":"epoch 1","rank":-1}',2430526474);
INSERT INTO ledger VALUES(3,4,4,'{"time":1700000000200000000,"epoch":1,"kind":"running","text":"epoch 1","rank":-1}',2014532869);
INSERT INTO ledger VALUES(3,4,5,'{"time":1700000000200000000,"epoch":1,"kind":"cancel_requested","text":"cancelled: enough","rank":-1}',2634109346);
INSERT INTO ledger VALUES(3,4,6,'{"time":1700000000200000000,"epoch":1,"kind":"directive","text":"1: stop, cancelled: enough","rank":-1}',3010728852);
INSERT INTO ledger VALUES(3,4,7,'{"time":1700000000200000000,"epoch":1,"kind":"cancelled","text":"cancelled: enough","rank":-1}',987948447);
COMMIT;
