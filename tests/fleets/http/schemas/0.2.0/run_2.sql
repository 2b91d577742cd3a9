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
CREATE TABLE ledger (
	round BIGINT NOT NULL, 
	entry TEXT NOT NULL, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (round)
);
INSERT INTO "ledger" VALUES(1,'{"round": 1, "releases": 1, "epsilon": 3.5365620688888635, "epsilon_next": 5.420018242131793, "delta": 0.001, "mechanism": "gaussian, server", "noise_multiplier": 2.0, "sampling": "every round", "clients": 2, "cohort": 2, "relation": "replace one client", "accountant": "rdp", "noise": "os"}','518dfb60e2e1ef61ba5613f66f5559e4');
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
INSERT INTO "notes" VALUES('leader','{"term": 1}','09e425ea585f7e93525432c61034ed59');
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
INSERT INTO "rounds" VALUES(1,0,'done','[0]','917a80812a6f8c7830cfcff96bcd7f9557a5d6a204a8ba27c955225aae06289c',NULL,'{"round": 1, "lr": 0.1, "clients": 1, "examples": 1.0, "train_loss": null, "bytes_up": 1075, "bytes_down": 780, "simulated_s": 0.001075, "seconds": 5.799352117999888, "eval_seconds": 0.004378184000188412, "saturated": 0, "test": null, "train": null, "epsilon": 3.5365620688888635, "ledger": {"round": 1, "releases": 1, "epsilon": 3.5365620688888635, "epsilon_next": 5.420018242131793, "delta": 0.001, "mechanism": "gaussian, server", "noise_multiplier": 2.0, "sampling": "every round", "clients": 2, "cohort": 2, "relation": "replace one client", "accountant": "rdp", "noise": "os"}, "cohort": {"asked": 1, "missing": {}}}','[0]','126ca7a505f22c019c543f31e902e95a');
INSERT INTO "rounds" VALUES(2,0,'collecting','[0]','9d4def2a42b828abaff30903fb18c3aee75bac3a009adc2f381479258e4285d4',NULL,NULL,NULL,'68bd192951fdc0cf12a6a7053817b205');
CREATE TABLE run (
	id INTEGER NOT NULL CHECK (id = 1), 
	plan_toml TEXT NOT NULL, 
	plan_digest TEXT NOT NULL, 
	engine TEXT NOT NULL, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "run" VALUES(1,'task = "toys:TOY"  # what is learned: a task''s name, or module:name of your own
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
','532aee78c000fec9','devices','0b78cfe487918ea963b7cea6556dec4e');
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
CREATE TABLE states (
	round BIGINT NOT NULL, 
	model_sha256 TEXT NOT NULL, 
	blob_sha256 TEXT NOT NULL, 
	blob BLOB NOT NULL, 
	digest TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (round)
);
INSERT INTO "states" VALUES(0,'917a80812a6f8c7830cfcff96bcd7f9557a5d6a204a8ba27c955225aae06289c','804c32bcc27df6d61ef66d38da134b8ff8bf685fa76c4a562fb8904eae0f1f3f',X'40000000000000007B2277656967687473223A7B226474797065223A22463332222C227368617065223A5B3139355D2C22646174615F6F666673657473223A5B302C3738305D7D7DDF0CA6BEB89E36BED5AF0A3C724C9F3EBB1A8FBEB60E3ABEF2D6233E94FA033DF2BA583EEE8B8ABE6C588ABE7C493BBE573F9D3E7C419FBE496383BE1B908BBEF86763BED381C1BDE92C6CBE3C739CBB5FF9923EEBDBA5BE8CD6A2BE15C76EBE1AED0FBEA19638BEB9602EBEED0B1BBEE9E998BE056AADBC942C853ED7AD45BEBAD29F3E0B14923E1E6AC03D41EF593C3D35AA3EC584A6BE22A81A3E50CBE43D4A580F3E849B18BDE5939BBE94FA55BE0307D1BD6E0A723EFE6E863E32442EBEF301B03D7B3EA33E9C0AEFBC4364A73C654C73BDAA85723E0AF435BD382D093EC82D99BEE4899E3EEE6F87BE4FDABF3CC8F09D3EE9E3F43CA940C9BD8C7FDA3DFD0CF9BBEDDD5EBDA0E156BE964B673E66159CBE40779A3EE10491BEF310243D8166213DA5F4093E96DAA9BE944391BEF9A9BD3DDBFB383ED59C403EEE541A3DC24A893E3D3E303EBB1A8CBDBA755C3E4D9229BDD70AADBE5B44963EDFDBF73BF15261BE1321AA3E21CFAABC74CC803E2F2ACEBC43148EBE8A34E53DA0AA00BE853A27BEB7CA103C16B6A53E8C4A1B3E88EF70BE324774BD46BF2CBE09EB393E25BB363E048D9DBBAF7D25BE9CC84EBEB8E5A0BE13C79ABE0B19293EDC3882BEE66F48BEB272673EE233A23E5706293E2100253E89F61C3E0599273EAE695DBC2B8B5BBEB9405BBD17550CBCB5062A3EA6D99CBEFE9399BE719944BED0D8A73E2724A8BDD11E6D3CDEA11FBE3B0BE23D29786CBE4DDFE13B5AAFBBBDD3E56FBE78C5B2BE2335103E9440A3BE0D90A0BE044074BE861D303EA4E9B3BD3021053E24FF9B3DF0117B3E60D7893DAC06CABDDA3747BE601628BD26FD18BE7AA17E3E6CF052BE74880D3E4CE0B7BD443EDABD42A018BEF8ADC3BDE0913CBCC8E3E13D405DA8BD646B113E109B5CBE0CADFABD106181BDD8A45DBD9CB37E3EEA0659BED816FA3D206392BC6CDF48BE2428F8BDE0E6313D567A33BEA41DF1BD204438BCC068E7BBA0566F3CB03A693D70DC13BD60758DBD0ED730BEBCB7DF3D480F233D486E08BDB2CF413E04122CBE4441F3BDB05BE0BDCE6334BE0EF260BEA0155FBEB0A3EDBD2078A53DB4A4923D','effeb3184dd272672ca6b6e20045c56d');
INSERT INTO "states" VALUES(1,'9d4def2a42b828abaff30903fb18c3aee75bac3a009adc2f381479258e4285d4','570786a222530e4b406b547752dff3a4226da174062c4a745b706a6ae70b0f11',X'40000000000000007B2277656967687473223A7B226474797065223A22463332222C227368617065223A5B3139355D2C22646174615F6F666673657473223A5B302C3738305D7D7DC69E853EEF87F73EF218F23EE3E8563E4C7A93BEF3FF023C24712DBFEABCD13DAA5F963D65D41BBEBC0E2D3F12132A3F7CFD8E3FD5D65CBFA0CC9FBDCB282FBF929CB3BE5CAA90BCBFDD033F22E64E3F80570DBE738906BF63B83E3F2ECD193F4792FDBE3B7C69BFC0152EBFE14170BE7C6FF53E2886C23E62F325BE3904CB3C651AC23F2FBA2E3F76E97C3EE4059F3F3AF2C13E1B302BBFE182913F973B153F097A7D3EFB9A07BFD38827BFE4F0F6BEAE4E093F1F1A8B3FF016253ECCCE42BF3419AB3F5F675A3E9E7DC6BEA78216BEEACC8ABC330DE03E208360BF3F559C3F8ADC74BF70BE273EB1D1313E0287453EE87AA23FB553073F6C2E5CBFC35D003F37094D3DECA52E3EDABEE7BE661C87BE980FC7BF4D7631BED838963ED655B23FCDBDE4BEA18E543E491A74BFDC0E4A3CD428AB3E7F0CFDBD8D4234BF1D660CBF47A0073FF0CE5CBDD0BA903D37D9C53DD93CA83EB4DB39BE518AEF3EB2007E3ECF11F8BDE2EF5E3EF0BDCB3EAD88EE3E7F0FC4BF07F22CBF6F3A903EE81718BF7EF6CBBD8C7EA03E6E7A08BF983BD93EC44647BE9D997EBECF541BBC5126FABE9093383FA66F24BFF91148BD7AEAD63E456B1CBF385563BE2EBFCBBDBE3D51BF54EDFA3DF142DDBEFA1C92BEA3462F3EE6A6053E619306BFDD91EEBE15AD793F76A578BED90A9DBE2B6F85BE73EFB0BE4DB227BFFBB952BFA4CD59BF924A993F488FBABEB44D48BF2468F53ED47B353F982B153FF7B1EBBD3DA9503EABA9613FDAB5F0BE68848D3E6642DA3E94CDA1BE20DA8CBF1EFE403F4B069FBD31FCB9BEE1B4433F5766073F02DAC03E065222BED7B345BF2F049FBEEEB2E43E3C8CE73E6A16013E721C353E482074BDCB714BBECEA5CCBEDABE0BBF87FCC2BE0D55C23E333EE93D84BD04BF3628813E40CBA5BEA134B53CC7DDFB3E7C80B73AA8FE72BE103D0BBF46D62FBD22EB58BF4123023FAADE20BE77649D3FB75FF13E7E1F883E9E64403E68F4FD3ED5DCB0BE3FD2FBBDB0F9FBBEF268E73E2F2D873F76DDC8BE7A1EB2BE8A2CED3E40509A3EB1566A3EF7FB85BF8C11F7BE080B58BEBC82143FCF2BC93E747E223D22A6313F','78d4be83f723ee8f1febbcdc5755bf05');
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
CREATE INDEX clients_by_change ON clients (changed);
CREATE UNIQUE INDEX one_round_is_open ON rounds (state) WHERE state = 'collecting';
CREATE UNIQUE INDEX a_round_is_done_once ON rounds (round) WHERE state = 'done';
COMMIT;
