	switch (t->back) {
	default: Uerror("bad return move");
	case  0: goto R999; /* nothing to undo */

		 /* PROC :init: */

	case 3: // STATE 1
		;
		((P3 *)_this)->_4_11_r = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 5: // STATE 3
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 6: // STATE 4
		;
		((P3 *)_this)->_4_11_r = trpt->bup.oval;
		;
		goto R999;

	case 7: // STATE 10
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 8: // STATE 12
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* PROC World */
;
		;
		;
		;
		
	case 11: // STATE 4
		;
		now.verdict[0] = trpt->bup.oval;
		;
		goto R999;
;
		
	case 12: // STATE 7
		goto R999;

	case 13: // STATE 18
		;
		((P2 *)_this)->who = trpt->bup.oval;
		;
		goto R999;

	case 14: // STATE 20
		;
		((P2 *)_this)->who = trpt->bup.oval;
		;
		goto R999;

	case 15: // STATE 25
		;
		now.alive[ Index(((0*2)+((P2 *)_this)->who), 4) ] = trpt->bup.oval;
		;
		goto R999;

	case 16: // STATE 26
		;
		now.poisoned[0] = trpt->bup.oval;
		;
		goto R999;

	case 17: // STATE 27
		;
	/* 0 */	((P2 *)_this)->who = trpt->bup.oval;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 18: // STATE 34
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* PROC Rank */

	case 19: // STATE 1
		;
		((P1 *)_this)->seq = trpt->bup.oval;
		;
		goto R999;

	case 20: // STATE 2
		;
	/* 0 */	((P1 *)_this)->e = trpt->bup.oval;
		;
		;
		goto R999;

	case 21: // STATE 5
		;
	/* 1 */	((P1 *)_this)->r = trpt->bup.ovals[1];
	/* 0 */	((P1 *)_this)->g = trpt->bup.ovals[0];
		;
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 22: // STATE 11
		;
		((P1 *)_this)->i = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 24: // STATE 13
		;
		((P1 *)_this)->i = trpt->bup.oval;
		;
		goto R999;

	case 25: // STATE 14
		;
	/* 0 */	((P1 *)_this)->i = trpt->bup.oval;
		;
		;
		goto R999;

	case 26: // STATE 16
		;
	/* 1 */	((P1 *)_this)->r = trpt->bup.ovals[1];
	/* 0 */	((P1 *)_this)->g = trpt->bup.ovals[0];
		;
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;
;
		;
		
	case 28: // STATE 27
		;
		now.epoch_now[ Index(((P1 *)_this)->g, 2) ] = trpt->bup.ovals[1];
		now.verdict[ Index(((P1 *)_this)->g, 2) ] = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;
;
		;
		
	case 30: // STATE 31
		;
	/* 1 */	((P1 *)_this)->r = trpt->bup.ovals[1];
	/* 0 */	((P1 *)_this)->g = trpt->bup.ovals[0];
		;
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;
;
		;
		
	case 32: // STATE 42
		;
		now.running[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->r), 4) ] = trpt->bup.oval;
		;
		goto R999;

	case 33: // STATE 43
		;
		;
		delproc(0, now._nr_pr-1);
		;
		goto R999;

	case 34: // STATE 44
		;
		join_epoch[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->r), 4) ] = trpt->bup.oval;
		;
		goto R999;

	case 35: // STATE 46
		;
		((P1 *)_this)->piece = trpt->bup.oval;
		;
		goto R999;

	case 36: // STATE 47
		;
	/* 0 */	((P1 *)_this)->g = trpt->bup.oval;
		;
		;
		goto R999;
;
		;
		
	case 38: // STATE 51
		;
	/* 0 */	((P1 *)_this)->piece = trpt->bup.oval;
		;
		;
		goto R999;

	case 39: // STATE 55
		;
		((P1 *)_this)->i = trpt->bup.ovals[1];
		((P1 *)_this)->s = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;
;
		;
		
	case 41: // STATE 57
		;
		((P1 *)_this)->i = trpt->bup.oval;
		;
		goto R999;

	case 42: // STATE 58
		;
	/* 0 */	((P1 *)_this)->i = trpt->bup.oval;
		;
		;
		goto R999;

	case 43: // STATE 60
		;
	/* 0 */	((P1 *)_this)->g = trpt->bup.oval;
		;
		;
		goto R999;
;
		;
		
	case 45: // STATE 71
		;
		now.slot_piece[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->s), 4) ] = trpt->bup.ovals[1];
		now.slot_epoch[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->s), 4) ] = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 46: // STATE 73
		;
	/* 0 */	((P1 *)_this)->g = trpt->bup.oval;
		;
		;
		goto R999;

	case 47: // STATE 78
		;
		now.ready_epoch[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->s), 4) ] = trpt->bup.oval;
		;
		goto R999;

	case 48: // STATE 79
		;
		now.ready_number[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->s), 4) ] = trpt->bup.oval;
		;
		goto R999;

	case 49: // STATE 83
		;
		((P1 *)_this)->piece = trpt->bup.ovals[2];
		now.ready_seq[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->s), 4) ] = trpt->bup.ovals[1];
		((P1 *)_this)->seq = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 3);
		goto R999;
;
		;
		
	case 51: // STATE 88
		;
		((P1 *)_this)->s = trpt->bup.oval;
		;
		goto R999;

	case 52: // STATE 90
		;
		((P1 *)_this)->i = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 54: // STATE 92
		;
		((P1 *)_this)->i = trpt->bup.oval;
		;
		goto R999;

	case 55: // STATE 100
		;
		((P1 *)_this)->s = trpt->bup.ovals[1];
	/* 0 */	((P1 *)_this)->i = trpt->bup.ovals[0];
		;
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 56: // STATE 95
		;
	/* 0 */	((P1 *)_this)->g = trpt->bup.oval;
		;
		;
		goto R999;

	case 57: // STATE 100
		;
		((P1 *)_this)->s = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 59: // STATE 115
		;
		now.verdict[ Index(((P1 *)_this)->g, 2) ] = trpt->bup.oval;
		;
		goto R999;
;
		
	case 60: // STATE 118
		goto R999;
;
		;
		
	case 62: // STATE 121
		;
		now.producer_done[ Index(((P1 *)_this)->g, 2) ] = trpt->bup.oval;
		;
		goto R999;
;
		;
		;
		;
		
	case 65: // STATE 130
		;
		now.outcome[ Index(((((P1 *)_this)->g*(2+1))+((P1 *)_this)->e), 6) ] = trpt->bup.oval;
		;
		goto R999;
;
		;
		;
		;
		
	case 68: // STATE 134
		;
		now.outcome[ Index(((((P1 *)_this)->g*(2+1))+((P1 *)_this)->e), 6) ] = trpt->bup.oval;
		;
		goto R999;
;
		;
		;
		;
		
	case 71: // STATE 139
		;
	/* 1 */	((P1 *)_this)->r = trpt->bup.ovals[1];
	/* 0 */	((P1 *)_this)->g = trpt->bup.ovals[0];
		;
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 72: // STATE 143
		;
		now.ended[ Index(((P1 *)_this)->r, 2) ] = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 74: // STATE 147
		;
		now.returned[ Index(((((P1 *)_this)->g*2)+((P1 *)_this)->r), 4) ] = trpt->bup.oval;
		;
		goto R999;

	case 75: // STATE 148
		;
		((P1 *)_this)->e = trpt->bup.oval;
		;
		goto R999;

	case 76: // STATE 153
		;
		now.ended[ Index(((P1 *)_this)->r, 2) ] = trpt->bup.oval;
		;
		goto R999;
;
		;
		;
		;
		
	case 79: // STATE 159
		;
		((P1 *)_this)->e = trpt->bup.ovals[1];
		((P1 *)_this)->g = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 80: // STATE 167
		;
		p_restor(II);
		;
		;
		goto R999;

		 /* PROC Consumer */

	case 81: // STATE 1
		;
		((P0 *)_this)->s = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 83: // STATE 8
		;
		((P0 *)_this)->s = trpt->bup.ovals[1];
		now.ack[ Index(((((((P0 *)_this)->g*2)+((P0 *)_this)->r)*2)+((P0 *)_this)->s), 8) ] = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 84: // STATE 8
		;
		((P0 *)_this)->s = trpt->bup.oval;
		;
		goto R999;

	case 85: // STATE 15
		;
		now.next_piece[ Index(((((P0 *)_this)->g*2)+((P0 *)_this)->r), 4) ] = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 87: // STATE 18
		;
	/* 0 */	((P0 *)_this)->e = trpt->bup.oval;
		;
		;
		goto R999;

	case 88: // STATE 20
		;
	/* 1 */	((P0 *)_this)->flying = trpt->bup.ovals[1];
	/* 0 */	((P0 *)_this)->piece = trpt->bup.ovals[0];
		;
		;
		ungrab_ints(trpt->bup.ovals, 2);
		goto R999;

	case 89: // STATE 22
		;
	/* 0 */	((P0 *)_this)->flying = trpt->bup.oval;
		;
		;
		goto R999;

	case 90: // STATE 24
		;
		((P0 *)_this)->flying = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 92: // STATE 27
		;
		now.done_epoch[ Index(((((P0 *)_this)->g*2)+((P0 *)_this)->r), 4) ] = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 94: // STATE 32
		;
		now.ack[ Index(((((((P0 *)_this)->g*2)+((P0 *)_this)->r)*2)+((P0 *)_this)->fly_slot), 8) ] = trpt->bup.oval;
		;
		goto R999;
;
		;
		
	case 96: // STATE 37
		;
		now.done_epoch[ Index(((((P0 *)_this)->g*2)+((P0 *)_this)->r), 4) ] = trpt->bup.oval;
		;
		goto R999;

	case 97: // STATE 41
		;
	/* 0 */	((P0 *)_this)->flying = trpt->bup.oval;
		;
		;
		goto R999;

	case 98: // STATE 51
		;
		((P0 *)_this)->piece = trpt->bup.ovals[6];
		((P0 *)_this)->flying = trpt->bup.ovals[5];
		((P0 *)_this)->fly_seq = trpt->bup.ovals[4];
		((P0 *)_this)->fly_slot = trpt->bup.ovals[3];
		((P0 *)_this)->fly_piece = trpt->bup.ovals[2];
		now.next_piece[ Index(((((P0 *)_this)->g*2)+((P0 *)_this)->r), 4) ] = trpt->bup.ovals[1];
		((P0 *)_this)->s = trpt->bup.ovals[0];
		;
		ungrab_ints(trpt->bup.ovals, 7);
		goto R999;

	case 99: // STATE 56
		;
		now.running[ Index(((((P0 *)_this)->g*2)+((P0 *)_this)->r), 4) ] = trpt->bup.oval;
		;
		goto R999;

	case 100: // STATE 57
		;
		p_restor(II);
		;
		;
		goto R999;
	}

