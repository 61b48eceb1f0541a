/* The sizes and mutants, the control region with its slots, and the steps on them that are shared. */

#ifndef R
#define R 2
#endif
#ifndef S
#define S 1
#endif
#ifndef P
#define P 2
#endif
#ifndef E
#define E 2
#endif
#ifndef CANCEL
#define CANCEL 0
#endif
#ifndef CANCELS
#define CANCELS 1
#endif
#ifndef FAIL
#define FAIL 0
#endif
#ifndef DEATH
#define DEATH 0
#endif
#ifndef ZOMBIE
#define ZOMBIE 0
#endif
#ifndef E2
#define E2 1 /* epochs after a recovery */
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

/* Mutants: numbers as in model.py. */
#define IGNORE_ONE_ACK 1
#define ACK_EARLY 2
#define NO_PASS_OVER 3
#define VERDICT_STORED 4
#define SAME_REGION 5
#define DONE_AFTER_ACK 6
#define READY_FIRST 7
#define POISON_STORED 8
#define SLOTS_KEPT 9
#define NO_DRAIN 10
#define NO_RETURN_WAIT 11
#define WISH_UNREAD 12
#define DEATH_UNSEEN 13
#define NO_POISON_LOOK 14
#define ZOMBIE_SEAT 15
#define SKIP_FORGOTTEN 16
#define WISH_UNSEEN 17
#define LOOK_ONCE 18
#define WISH_SINGLE 19
#define WISH_PASSED 20
#define NO_HELP 21

#if FAIL || DEATH
#define G 2
#else
#define G 1
#endif
#if DEATH
#define M 2 /* slots: those of the first rank 0, those of its successor */
#else
#define M 1
#endif

#define OPEN 1
#define DONE 2
#define CANCELLED 3
#define V(e, what) ((e) * 4 + (what))
#define FAILED 0
#define CLAIMED 1
#define POISONED 2
#define NOBODY 255

#if DEATH /* a process ends between any two steps */
#define MORTAL unless { killed && g == 0 && me == victim }
#define A_THREAD_MORTAL unless { killed && me == victim }
#else
#define MORTAL
#define A_THREAD_MORTAL
#endif
#if MUTANT == SAME_REGION
#define region(g) 0
#else
#define region(g) (g)
#endif
#define N(g, r) ((g) * R + (r))
#define L(g, s) (region(g) * S + (s))
#define A(g, r, s) ((region(g) * R + (r)) * S + (s))
#define Q(g, r) (region(g) * R + (r))
#define content(g, e, p) (((g) * E + (e) - 1) * P + (p) + 1)

/* The control region of each generation. */
byte current[G];       /* active_epoch */
byte verdict[G];       /* V(epoch, what) */
byte poison[G];        /* 0, CLAIMED, POISONED */
byte cause[G] = NOBODY;
byte producer_done[G];
byte ready_seq[G * S];
byte ready_epoch[G * S];
byte ready_number[G * S];
byte ack[G * R * S];
byte done_epoch[G * R]; /* consumer_done_epoch */
byte returned[G * R];   /* wait_returned_epoch */
#if CANCEL
byte wish[R]; /* cancel_wish */
#if MUTANT == WISH_SINGLE
#define wishes(i, e) (wish[i] == (e))
#else
#define wishes(i, e) ((wish[i] >> (e)) & 1)
#endif
#if MUTANT == WISH_UNSEEN
#define anybody_wishes(e) 0
#elif R == 2
#define anybody_wishes(e) (wishes(0, e) || wishes(1, e))
#else
#define anybody_wishes(e) (wishes(0, e) || wishes(1, e) || wishes(2, e))
#endif
#if MUTANT == SKIP_FORGOTTEN
#define NOT_LEFT true
#else
#define NOT_LEFT seen > returned[Q(g, me)]
#endif
#endif

/* The slots' bytes: which piece of which layer they are. */
byte bytes[M * S];

/* Inside a rank's process, between its threads. */
byte job[G * R];      /* the epoch handed to the consumer; 0: none is in work */
bit closing[G * R];
bit gone[G * R];      /* its consumer's thread has ended */
byte submitted[G * R], landed[G * R]; /* pieces of this layer on their way to the device, and arrived */
byte right[G * R];    /* of those, the ones that were the right bytes, in order */

/* What happened: not in the code. */
bit created[2];
byte victim = NOBODY; /* taken for dead; it may go on for a while: a zombie */
bit killed;          /* and now it does not any more */
byte ended;           /* ranks that have done all epochs of the first generation */
bit over;
byte outcome[G * (E + 1)];
byte told[G] = NOBODY;
#if CANCEL
bit granted[E + 1];   /* cancel said: it is given up */
#endif
bit finished[2 * R];  /* its caller has come to its end */

#define lives(g, r) (!((g) == 0 && victim == (r)))
#define is_cancelled(g, e) (verdict[region(g)] == V(e, CANCELLED))
#define slots_of(g) ((M == 2 && (g) == 1 && victim == 0 && MUTANT != SLOTS_KEPT) -> 1 : 0)
#define acked(g, i, s) (ack[A(g, i, s)] >= ready_seq[L(g, s)])
#if MUTANT == NO_POISON_LOOK
#define broken(g, e) (is_cancelled(g, e))
#else
#define broken(g, e) (poison[region(g)] != 0 || is_cancelled(g, e))
#endif

/* Acknowledgements only grow: to see all at once is to see one after the other. */
#if MUTANT == IGNORE_ONE_ACK
#define all_acked(g, s) (acked(g, 0, s) && (R < 3 || acked(g, 1, s)))
#elif R == 2
#define all_acked(g, s) (acked(g, 0, s) && acked(g, 1, s))
#else
#define all_acked(g, s) (acked(g, 0, s) && acked(g, 1, s) && acked(g, 2, s))
#endif
#if R == 2
#define all_returned(g, e) (returned[Q(g, 0)] >= (e) && returned[Q(g, 1)] >= (e))
#else
#define all_returned(g, e) (returned[Q(g, 0)] >= (e) && returned[Q(g, 1)] >= (e) && returned[Q(g, 2)] >= (e))
#endif
/* At most two copies are on their way. */
#define in_flight(g, r, s) (submitted[N(g, r)] > landed[N(g, r)] && (landed[N(g, r)] % S == (s) || \
  (submitted[N(g, r)] - landed[N(g, r)] == 2 && (landed[N(g, r)] + 1) % S == (s))))
/* The same for the two counters of a wait. */
#define is_done(g, r, e) (done_epoch[Q(g, r)] >= (e) && \
  (producer_done[region(g)] >= (e) || verdict[region(g)] == V(e, DONE)))

inline note(g, e, what) {
  assert(outcome[(g) * (E + 1) + (e)] == 0 || outcome[(g) * (E + 1) + (e)] == what);
  outcome[(g) * (E + 1) + (e)] = what
}

/* wait returns: every piece is on this rank's device, once, in order, of this layer and generation. */
inline succeed(g, r, e) {
  if
  :: lives(g, r) ->
     assert(right[N(g, r)] == P);
     note(g, e, DONE);
#if CANCEL
     assert(g != 0 || !granted[e])
#endif
  :: else
  fi
}

inline land(g, r, e) {
  if
  :: bytes[slots_of(g) * S + landed[N(g, r)] % S] == content(g, e, landed[N(g, r)]) &&
     right[N(g, r)] == landed[N(g, r)] -> right[N(g, r)]++
  :: else
  fi;
  landed[N(g, r)]++
}

/* The writer fills a slot. */
inline fill(g, e, p) {
  i = 0;
  do
  :: i < R ->
     assert(!lives(g, 0) || !lives(g, i) || acked(g, i, p % S)); /* it is this rank's to overwrite */
     assert(!lives(g, 0) || !lives(g, i) || job[N(g, i)] == 0 || !in_flight(g, i, p % S));
     i++
  :: else -> i = 0; break
  od;
  bytes[slots_of(g) * S + p % S] = content(g, e, p)
}

/* ControlBlock::poison: the first wins, the others are told its cause. */
inline fail(g, who) {
#if MUTANT == POISON_STORED
  if
  :: poison[region(g)] == 0 -> poison[region(g)] = CLAIMED; cause[region(g)] = who; poison[region(g)] = POISONED
  :: else
  fi
#else
  if
  :: atomic { poison[region(g)] == 0 -> poison[region(g)] = CLAIMED };
     atomic { assert(cause[region(g)] == NOBODY || region(g) != g); cause[region(g)] = who };
     poison[region(g)] = POISONED
  :: atomic { poison[region(g)] != 0 }
  fi
#endif
}

/* What is raised. A claimer that died before it wrote the cause is waited for 10 ms, then nobody is named. */
inline raise(g) {
  if
  :: atomic { poison[region(g)] == POISONED ->
       assert(told[g] == NOBODY || told[g] == cause[region(g)]);
       told[g] = cause[region(g)] }
  :: poison[region(g)] == CLAIMED
  fi
}
