BEGIN TRANSACTION;
CREATE TABLE clients (
	k BIGINT NOT NULL CHECK (k >= 0), 
	"key" BLOB NOT NULL, 
	token BLOB NOT NULL, 
	examples BIGINT NOT NULL CHECK (examples >= 0), 
	name TEXT NOT NULL, 
	revoked INTEGER DEFAULT '0' NOT NULL, 
	enrolled BIGINT DEFAULT '0' NOT NULL, 
	address TEXT DEFAULT '' NOT NULL, 
	approved INTEGER DEFAULT '1' NOT NULL, 
	changed BIGINT, 
	tasks TEXT, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (k), 
	UNIQUE ("key")
);
INSERT INTO "clients" VALUES(0,X'054C1436642A5AD3E7E07FFC83E4EE2ABD97509EFE3B7D9B06CA4280D94131FA',X'E56737F0AD194FE42C14F865ED72261C2651AF27F0EEDAAFADB66D80EC8D73D2',10,'',0,1794995120,'127.0.0.1',1,1,'["toys:TOY"]','487388509dcd3ec7d5425790e03d0b68');
INSERT INTO "clients" VALUES(1,X'0814EF579B528B22614ECB3ABF6B995B42391E9DA14F597B6BB5D24DA7AB5258',X'E56737F0AD194FE42C14F865ED72261C2651AF27F0EEDAAFADB66D80EC8D73D2',7,'',1,1794995120,'127.0.0.1',1,3,'["toys:TOY"]','4b24f72d31643cf33e7e453da3a59229');
CREATE TABLE ledger (
	round BIGINT NOT NULL, 
	entry TEXT NOT NULL, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (round)
);
CREATE TABLE meta (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('schema','5','d52f30cffa5218c5156aba9aff59ca8a');
INSERT INTO "meta" VALUES('definitions','40b4ddd6f47d4284d3c9c7791200d52bf41c614ce17b276e793315ce06665733','f5775558be7f32c7ce827d152824bf09');
CREATE TABLE notes (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "notes" VALUES('admin-token','8a7166cc49f9803b3f0c29aee56f93d73c547e5814588de5690c7a3194ba5993','3b9c7106b95e00a185be51f505e4d0f1');
CREATE TABLE rounds (
	round BIGINT NOT NULL CHECK (round >= 1), 
	attempt BIGINT NOT NULL CHECK (attempt >= 0), 
	state TEXT NOT NULL CHECK (state IN ('collecting', 'abandoned', 'done')), 
	cohort TEXT NOT NULL, 
	model_sha256 TEXT NOT NULL, 
	reason TEXT, 
	metrics TEXT, 
	counted TEXT, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (round, attempt)
);
CREATE TABLE run (
	id INTEGER NOT NULL CHECK (id = 1), 
	plan_toml TEXT NOT NULL, 
	plan_digest TEXT NOT NULL, 
	engine TEXT NOT NULL, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE runs (
	number BIGINT NOT NULL CHECK (number >= 1), 
	name TEXT NOT NULL, 
	plan_toml TEXT NOT NULL, 
	plan_digest TEXT NOT NULL, 
	state TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	submitted BIGINT NOT NULL, 
	"by" TEXT NOT NULL, 
	changes TEXT NOT NULL, 
	init_sha256 TEXT, 
	init BLOB, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "runs" VALUES(1,'over','task = "toys:TOY"  # what is learned: a task''s name, or module:name of your own
data = "none"  # the data set: its name, or module:name of your own
# partition = ?  how clients get examples: iid, shards, dirichlet:0.5, ... [the data set''s own]
# changes = ?  data that changes by round: arrivals, deletions, window, drift
# clients = ?  K, the number of clients [the data set''s own]
holdout = 0.0  # share of each client''s examples kept out of training, for evaluation on that client
# adapters = ?  train and send only small changes of a frozen module: lora:r=8 (docs/adapters.md)
# frozen = ?  fingerprint of the weights that stay as they are, others are refused [not checked]
algorithm = "fedavg"  # fedavg, fedprox, scaffold, fedadam, ... (docs/algorithms.md has all); settings after colons
C = 1.0  # C, the fraction of clients in a round; 0 is one client
E = 1  # E, local epochs a round; ''20,100:5'' is 5 from round 100 on
B = 4  # B, the local batch size; inf is all local data; may change by round as E
drop_last = false  # skip the short last batch of each epoch, unless it is the only one
lr = "0.1,2:0.05"  # eta, the learning rate; may change by round: ''0.1,100:0.01'', cosine:0.1 (docs/training.md)
lr_decay = 1.0  # eta is multiplied by this after each round
optimizer = "sgd"  # how clients step: sgd:momentum=0.9:weight_decay=1e-4, adam, adamw; settings after colons
rounds = 2  # the largest number of rounds
# target = ?  stop at this accuracy, or at f1=0.8, or at clients.f1=0.8 (the f1 that clients find)
# patience = ?  stop after this many rounds without a better accuracy (or the task''s first metric); loss=20 watches the loss
metrics = []  # metrics in addition to the task''s own: f1:10,topk:5 (docs/metrics.md)
evaluate = "auto"  # who evaluates: server (its test set), clients (what they hold out), server,clients, none
# eval_clients = ?  clients that evaluate the model each time, drawn by the seed [all]
eval_every = 1  # rounds from one evaluation to the next; the last is always evaluated
eval_train = false  # evaluate on the whole training set too
seed = 1  # every random draw of the run follows from it
codec = "float32"  # how updates are encoded: float32, stc:0.01, entropy:quantise:4, ...
downlink = "float32"  # how the server''s change is encoded; float32 sends the whole model
secagg = "none"  # secure aggregation: none, complete:CLIP:CAP or sparse:CLIP:CAP
stages = []  # steps around the sum, in order: clip:1.0,weigh:equal,noise:1.1
sampling = "fixed"  # who is asked: fixed (m at random), poisson, weighted (by n_k), turns, choice:D (by losses), oort, corrected
# world = ?  a simulated clock: who is there when, on what devices: always, diurnal, markov, trace:FILE (docs/world.md)
closing = "all"  # when a round has enough: all, deadline:SECONDS, quorum:SHARE; over=1.3 asks more clients than are needed
# reducer = ?  a rule over single updates in place of the weighted mean: median, trimmed:0.3, krum:0.2, ... (docs/robust.md)
pre = []  # steps before the reducer, in order: clip:2,nnm:0.2; also bucket:2, arc:0.2
# attack = ?  how some simulated clients lie: signflip, alie, labelflip, backdoor:0, ... (docs/robust.md)
attackers = 0.0  # who lies: a share of the clients, drawn by the seed, or their numbers: 3,7
# dp_epsilon = ?  stop before the round that would cost more privacy than this
# dp_delta = ?  delta of the privacy that is reported [clients^-1.1]
noise_source = "seeded"  # noise and cohorts from the seed (repeatable: for simulation) or from the system''s entropy
engine = "auto"  # how clients train: graph (fast), plain, or auto (graph if possible)
device = "cpu"  # where clients train: cpu or cuda
uplink = 1.0  # MB/s that a client uploads at, for the simulated clock
workers = 2  # processes that train clients [one per core that it may use]
# data_dir = ?  where data sets are kept
# worker_timeout = ?  seconds after which a silent worker is replaced [20 times what earlier jobs took, at least 60]
start_method = "auto"  # how local workers start: fork, spawn, forkserver, or auto (fork on Linux, else spawn)
checkpoint_s = 10.0  # seconds between checkpoints
','bd56d26613b08782','done','2 rounds, model 60d142c9bcec76ba65a927d2723a02c513392c7583b468094361e78a10958aee',1794995120,'operator','[{"at": 1794995121, "after_round": 1, "by": "operator", "rounds": 2, "lr": 0.05, "plan": "bd56d26613b08782"}]',NULL,NULL,'3779fb1f9c62b894f06c1719d173900e');
INSERT INTO "runs" VALUES(2,'private','task = "toys:TOY"  # what is learned: a task''s name, or module:name of your own
data = "none"  # the data set: its name, or module:name of your own
# partition = ?  how clients get examples: iid, shards, dirichlet:0.5, ... [the data set''s own]
# changes = ?  data that changes by round: arrivals, deletions, window, drift
clients = 2  # K, the number of clients [the data set''s own]
holdout = 0.0  # share of each client''s examples kept out of training, for evaluation on that client
# adapters = ?  train and send only small changes of a frozen module: lora:r=8 (docs/adapters.md)
# frozen = ?  fingerprint of the weights that stay as they are, others are refused [not checked]
algorithm = "fedavg"  # fedavg, fedprox, scaffold, fedadam, ... (docs/algorithms.md has all); settings after colons
C = 1.0  # C, the fraction of clients in a round; 0 is one client
E = 1  # E, local epochs a round; ''20,100:5'' is 5 from round 100 on
B = 4  # B, the local batch size; inf is all local data; may change by round as E
drop_last = false  # skip the short last batch of each epoch, unless it is the only one
lr = 0.1  # eta, the learning rate; may change by round: ''0.1,100:0.01'', cosine:0.1 (docs/training.md)
lr_decay = 1.0  # eta is multiplied by this after each round
optimizer = "sgd"  # how clients step: sgd:momentum=0.9:weight_decay=1e-4, adam, adamw; settings after colons
rounds = 3  # the largest number of rounds
# target = ?  stop at this accuracy, or at f1=0.8, or at clients.f1=0.8 (the f1 that clients find)
# patience = ?  stop after this many rounds without a better accuracy (or the task''s first metric); loss=20 watches the loss
metrics = []  # metrics in addition to the task''s own: f1:10,topk:5 (docs/metrics.md)
evaluate = "auto"  # who evaluates: server (its test set), clients (what they hold out), server,clients, none
# eval_clients = ?  clients that evaluate the model each time, drawn by the seed [all]
eval_every = 1  # rounds from one evaluation to the next; the last is always evaluated
eval_train = false  # evaluate on the whole training set too
seed = 2  # every random draw of the run follows from it
codec = "float32"  # how updates are encoded: float32, stc:0.01, entropy:quantise:4, ...
downlink = "float32"  # how the server''s change is encoded; float32 sends the whole model
secagg = "none"  # secure aggregation: none, complete:CLIP:CAP or sparse:CLIP:CAP
stages = ["clip:0.5", "weigh:equal", "noise:2.0"]  # steps around the sum, in order: clip:1.0,weigh:equal,noise:1.1
sampling = "fixed"  # who is asked: fixed (m at random), poisson, weighted (by n_k), turns, choice:D (by losses), oort, corrected
# world = ?  a simulated clock: who is there when, on what devices: always, diurnal, markov, trace:FILE (docs/world.md)
closing = "all"  # when a round has enough: all, deadline:SECONDS, quorum:SHARE; over=1.3 asks more clients than are needed
# reducer = ?  a rule over single updates in place of the weighted mean: median, trimmed:0.3, krum:0.2, ... (docs/robust.md)
pre = []  # steps before the reducer, in order: clip:2,nnm:0.2; also bucket:2, arc:0.2
# attack = ?  how some simulated clients lie: signflip, alie, labelflip, backdoor:0, ... (docs/robust.md)
attackers = 0.0  # who lies: a share of the clients, drawn by the seed, or their numbers: 3,7
# dp_epsilon = ?  stop before the round that would cost more privacy than this
dp_delta = 0.001  # delta of the privacy that is reported [clients^-1.1]
noise_source = "os"  # noise and cohorts from the seed (repeatable: for simulation) or from the system''s entropy
engine = "auto"  # how clients train: graph (fast), plain, or auto (graph if possible)
device = "cpu"  # where clients train: cpu or cuda
uplink = 1.0  # MB/s that a client uploads at, for the simulated clock
workers = 2  # processes that train clients [one per core that it may use]
# data_dir = ?  where data sets are kept
# worker_timeout = ?  seconds after which a silent worker is replaced [20 times what earlier jobs took, at least 60]
start_method = "auto"  # how local workers start: fork, spawn, forkserver, or auto (fork on Linux, else spawn)
checkpoint_s = 10.0  # seconds between checkpoints
','532aee78c000fec9','running','',1794995122,'operator','[]',NULL,NULL,'e6e0af31a59ed2b5131e0141a8369883');
INSERT INTO "runs" VALUES(3,'waits','task = "toys:TOY"  # what is learned: a task''s name, or module:name of your own
data = "none"  # the data set: its name, or module:name of your own
# partition = ?  how clients get examples: iid, shards, dirichlet:0.5, ... [the data set''s own]
# changes = ?  data that changes by round: arrivals, deletions, window, drift
# clients = ?  K, the number of clients [the data set''s own]
holdout = 0.0  # share of each client''s examples kept out of training, for evaluation on that client
# adapters = ?  train and send only small changes of a frozen module: lora:r=8 (docs/adapters.md)
# frozen = ?  fingerprint of the weights that stay as they are, others are refused [not checked]
algorithm = "fedavg"  # fedavg, fedprox, scaffold, fedadam, ... (docs/algorithms.md has all); settings after colons
C = 1.0  # C, the fraction of clients in a round; 0 is one client
E = 1  # E, local epochs a round; ''20,100:5'' is 5 from round 100 on
B = 4  # B, the local batch size; inf is all local data; may change by round as E
drop_last = false  # skip the short last batch of each epoch, unless it is the only one
lr = 0.1  # eta, the learning rate; may change by round: ''0.1,100:0.01'', cosine:0.1 (docs/training.md)
lr_decay = 1.0  # eta is multiplied by this after each round
optimizer = "sgd"  # how clients step: sgd:momentum=0.9:weight_decay=1e-4, adam, adamw; settings after colons
rounds = 1  # the largest number of rounds
# target = ?  stop at this accuracy, or at f1=0.8, or at clients.f1=0.8 (the f1 that clients find)
# patience = ?  stop after this many rounds without a better accuracy (or the task''s first metric); loss=20 watches the loss
metrics = []  # metrics in addition to the task''s own: f1:10,topk:5 (docs/metrics.md)
evaluate = "auto"  # who evaluates: server (its test set), clients (what they hold out), server,clients, none
# eval_clients = ?  clients that evaluate the model each time, drawn by the seed [all]
eval_every = 1  # rounds from one evaluation to the next; the last is always evaluated
eval_train = false  # evaluate on the whole training set too
seed = 3  # every random draw of the run follows from it
codec = "float32"  # how updates are encoded: float32, stc:0.01, entropy:quantise:4, ...
downlink = "float32"  # how the server''s change is encoded; float32 sends the whole model
secagg = "none"  # secure aggregation: none, complete:CLIP:CAP or sparse:CLIP:CAP
stages = []  # steps around the sum, in order: clip:1.0,weigh:equal,noise:1.1
sampling = "fixed"  # who is asked: fixed (m at random), poisson, weighted (by n_k), turns, choice:D (by losses), oort, corrected
# world = ?  a simulated clock: who is there when, on what devices: always, diurnal, markov, trace:FILE (docs/world.md)
closing = "all"  # when a round has enough: all, deadline:SECONDS, quorum:SHARE; over=1.3 asks more clients than are needed
# reducer = ?  a rule over single updates in place of the weighted mean: median, trimmed:0.3, krum:0.2, ... (docs/robust.md)
pre = []  # steps before the reducer, in order: clip:2,nnm:0.2; also bucket:2, arc:0.2
# attack = ?  how some simulated clients lie: signflip, alie, labelflip, backdoor:0, ... (docs/robust.md)
attackers = 0.0  # who lies: a share of the clients, drawn by the seed, or their numbers: 3,7
# dp_epsilon = ?  stop before the round that would cost more privacy than this
# dp_delta = ?  delta of the privacy that is reported [clients^-1.1]
noise_source = "seeded"  # noise and cohorts from the seed (repeatable: for simulation) or from the system''s entropy
engine = "auto"  # how clients train: graph (fast), plain, or auto (graph if possible)
device = "cpu"  # where clients train: cpu or cuda
uplink = 1.0  # MB/s that a client uploads at, for the simulated clock
workers = 2  # processes that train clients [one per core that it may use]
# data_dir = ?  where data sets are kept
# worker_timeout = ?  seconds after which a silent worker is replaced [20 times what earlier jobs took, at least 60]
start_method = "auto"  # how local workers start: fork, spawn, forkserver, or auto (fork on Linux, else spawn)
checkpoint_s = 10.0  # seconds between checkpoints
','413144517510cab5','queued','',1794995122,'operator','[]','31da7e03a2de955504e947c94637a78dc9aef4db6bb768724e709fd0deb0513f',X'00010000000000007B22302E62696173223A7B226474797065223A22463332222C227368617065223A5B31365D2C22646174615F6F666673657473223A5B302C36345D7D2C22302E776569676874223A7B226474797065223A22463332222C227368617065223A5B31362C385D2C22646174615F6F666673657473223A5B36342C3537365D7D2C22322E62696173223A7B226474797065223A22463332222C227368617065223A5B335D2C22646174615F6F666673657473223A5B3537362C3538385D7D2C22322E776569676874223A7B226474797065223A22463332222C227368617065223A5B332C31365D2C22646174615F6F666673657473223A5B3538382C3738305D7D7D0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F0000803F','139115aa18edc24241455df9730611b8');
CREATE TABLE states (
	round BIGINT NOT NULL, 
	model_sha256 TEXT NOT NULL, 
	blob_sha256 TEXT NOT NULL, 
	blob BLOB NOT NULL, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (round)
);
CREATE TABLE tokens (
	hash BLOB NOT NULL, 
	uses BIGINT CHECK (uses >= 0), 
	label TEXT NOT NULL, 
	client BIGINT CHECK (client >= 0), 
	expires BIGINT, 
	used BIGINT DEFAULT '0' NOT NULL, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (hash)
);
INSERT INTO "tokens" VALUES(X'E56737F0AD194FE42C14F865ED72261C2651AF27F0EEDAAFADB66D80EC8D73D2',998,'made at the first start',NULL,1795599919,2,'065372df201494b1bb863aafac21b030');
CREATE INDEX clients_by_change ON clients (changed);
CREATE UNIQUE INDEX one_round_is_open ON rounds (state) WHERE state = 'collecting';
CREATE UNIQUE INDEX a_round_is_done_once ON rounds (round) WHERE state = 'done';
COMMIT;
